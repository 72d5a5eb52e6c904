// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// aims are the row's, with one that follows from another row of the same run.
func (b *bench) aims(r row) []float64 {
	if of := b.results[r.of]; len(of) > 0 {
		return []float64{r.times * of[0]}
	}
	return r.aim
}

// report is the table of all that was measured, what misses its aim explained below it.
func (b *bench) report(machine string) string {
	var table, misses strings.Builder
	fmt.Fprintf(&table, "%s\n\n| what | peer | aim | here | |\n|---|---:|---:|---:|---|\n", machine)
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
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s |\n", r.what, withUnit(r.peer, r.unit), withUnit(aim(r, aims), r.unit), withUnit(figures(here), r.unit), verdict)
	}
	if misses.Len() > 0 {
		fmt.Fprintf(&table, "\nWhat misses its aim, and why:\n\n%s", misses.String())
	}
	return table.String()
}

func within(here, aims []float64) bool {
	for i, aim := range aims {
		if i < len(here) && here[i] > aim {
			return false
		}
	}
	return true
}

func aim(r row, aims []float64) string {
	if len(aims) == 0 {
		return ""
	}
	text := "≤ " + figures(aims)
	if r.says != "" {
		text = r.says + ": " + text
	}
	return text
}

func withUnit(text, unit string) string {
	switch {
	case text == "":
		return ""
	case strings.HasSuffix(text, ")"): // a remark stands behind the figure
		figure, remark, _ := strings.Cut(text, " (")
		return figure + " " + unit + " (" + remark
	}
	return text + " " + unit
}

// figures writes numbers with three digits, or all of those before the point.
func figures(values []float64) string {
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
