// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteText writes the results as a table, and then what failed.
func WriteText(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CHECK\tLEVEL\tRESULT\tDETAIL")
	count := map[Status]int{}
	for _, r := range results {
		count[r.Status]++
		line, _, _ := strings.Cut(r.Detail, "\n")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.ID, r.Level, r.Status, line)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		if r.Status == Fail {
			fmt.Fprintf(w, "\n%s (%s): %s\n  expected by: %s\n  seen: %s\n", r.ID, r.Level, r.Expect, r.By,
				strings.ReplaceAll(r.Detail, "\n", "\n  "))
		}
	}
	_, err := fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", count[Pass], count[Fail], count[Skip])
	return err
}

// WriteJSON writes the results as one JSON array.
func WriteJSON(w io.Writer, results []Result) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(results)
}
