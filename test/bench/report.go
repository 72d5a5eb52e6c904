// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// aims returns the row's targets, including one that derives from another row of the same run.
func (b *bench) aims(r row) []float64 {
	if of := b.results[r.of]; len(of) > 0 {
		return []float64{r.times * of[0]}
	}
	return r.aim
}

// report returns the table of all results, with explanations of missed targets below it.
func (b *bench) report(machine string) string {
	var table, misses strings.Builder
	floors, missed := b.floorsTable()
	misses.WriteString(missed)
	fmt.Fprintf(&table, "%s\n\n%s\n| what | aim | here | |\n|---|---:|---:|---|\n", machine, floors)
	for _, r := range rows {
		here, measured := b.results[r.key]
		if !measured {
			continue
		}
		aims := b.aims(r)
		verdict := ""
		if len(aims) > 0 {
			verdict = "ok"
			if !within(here, aims) {
				verdict = "**miss**"
				fmt.Fprintf(&misses, "- %s: %s\n", strings.TrimPrefix(r.what, "– "), r.why)
			}
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", r.what, withUnit(aim(r, aims), r.unit),
			withUnit(formatValues(here), r.unit), verdict)
	}
	if misses.Len() > 0 {
		fmt.Fprintf(&table, "\nWhat misses its aim, and why:\n\n%s", misses.String())
	}
	return table.String()
}

func within(here, aims []float64) bool {
	for i, value := range here {
		if value > aims[min(i, len(aims)-1)] {
			return false
		}
	}
	return true
}

func aim(r row, aims []float64) string {
	if len(aims) == 0 {
		return ""
	}
	text := "≤ " + formatValues(aims)
	if r.says != "" {
		text = r.says + ": " + text
	}
	return text
}

func withUnit(text, unit string) string {
	switch {
	case text == "":
		return ""
	case strings.HasSuffix(text, ")"): // the value has a remark
		figure, remark, _ := strings.Cut(text, " (")
		return figure + " " + unit + " (" + remark
	}
	return text + " " + unit
}

// formatValues formats numbers with three digits, or with all digits of the integer part.
func formatValues(values []float64) string {
	var texts []string
	for _, v := range values {
		digits := 2
		switch {
		case v >= 100 || v <= -100:
			digits = 0
		case v >= 10 || v <= -10:
			digits = 1
		}
		text := strconv.FormatFloat(v, 'f', digits, 64)
		if strings.Contains(text, ".") {
			text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " / ")
}
