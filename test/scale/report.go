// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/page"
)

// report prints the results of all parts, also of earlier runs, and writes them into the page.
func (o options) report(ctx context.Context) error {
	var bound []rates
	for _, l := range layouts {
		if err := read(o.file(l.name), &bound); err != nil {
			return err
		}
	}
	var published []publishing
	for _, f := range o.fleets {
		if err := read(o.file(f.name()), &published); err != nil {
			return err
		}
	}
	var found []searches
	if err := read(o.file(searchPart), &found); err != nil {
		return err
	}
	text := tables(bound, published, found)
	fmt.Println(text)
	if o.docs == "" {
		return nil
	}
	version, err := exec.CommandContext(ctx, filepath.Join(o.kubernetes, "kube-apiserver"), "--version").Output()
	if err != nil {
		return err
	}
	kubernetes := strings.TrimSpace(strings.TrimPrefix(string(version), "Kubernetes v"))
	return page.Insert(o.docs, "make scale", page.Machine(ctx, o.docs, kubernetes)+"\n\n"+text)
}

// read appends the result in the file; nothing if it was never measured.
func read[T any](file string, to *[]T) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var one T
	if err == nil {
		err = json.Unmarshal(text, &one)
	}
	*to = append(*to, one)
	return err
}

// tables returns the results in Markdown.
func tables(bound []rates, published []publishing, found []searches) string {
	var b strings.Builder
	for _, s := range found {
		s.table(&b)
	}
	for _, r := range bound {
		r.table(&b)
	}
	publishingTable(&b, published)
	return b.String()
}

// table writes how long the allocator takes for a node.
func (s searches) table(b *strings.Builder) {
	fmt.Fprintf(b, "| milliseconds for one node of %d, 0 %% / 50 %% held |", s.Nodes)
	for _, column := range s.Columns {
		b.WriteString(" " + column + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(s.Columns)) + "\n")
	for i := 0; i < len(s.Rows); i += 2 {
		empty, half := s.Rows[i], s.Rows[i+1]
		b.WriteString("| " + empty.Kind + " |")
		for j := range s.Columns {
			if empty.Millis[j] < 0 {
				b.WriteString(" – |")
				continue
			}
			fmt.Fprintf(b, " %.2f / %.2f |", empty.Millis[j], half.Millis[j])
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// table writes how many pods a second were bound.
func (r rates) table(b *strings.Builder) {
	fmt.Fprintf(b, "| %d nodes, %s |", r.Nodes, r.Layout)
	for _, f := range r.Fills {
		fmt.Fprintf(b, " %d %% held |", f.Percent)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(r.Fills)) + "\n| no claim |")
	for _, f := range r.Fills {
		fmt.Fprintf(b, " %s/s |", digits(median(f.None)))
	}
	b.WriteString("\n")
	for i, k := range r.Fills[0].Kinds {
		fmt.Fprintf(b, "| %s |", k.Kind)
		for _, f := range r.Fills {
			ratio := f.Kinds[i].Ratio
			fmt.Fprintf(b, " %s/s, %s (%s–%s) |", digits(median(f.Kinds[i].PodsSecond)), digits(median(ratio)),
				digits(slices.Min(ratio)), digits(slices.Max(ratio)))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// digits returns the number with two digits, or with all digits before the point.
func digits(n float64) string {
	places := 0
	for scale := n; scale > 0 && scale < 9.95 && places < 4; scale *= 10 {
		places++
	}
	return strconv.FormatFloat(n, 'f', places, 64)
}

// publishingTable writes what it takes to publish the fleets, a column for each.
func publishingTable(b *strings.Builder, all []publishing) {
	if len(all) == 0 {
		return
	}
	b.WriteString("| |")
	for _, p := range all {
		fmt.Fprintf(b, " %s |", p.Fleet)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(all)) + "\n")
	row := func(name string, cell func(publishing) string) {
		b.WriteString("| " + name + " |")
		for _, p := range all {
			b.WriteString(" " + cell(p) + " |")
		}
		b.WriteString("\n")
	}
	row("GPUs / devices / slices", func(p publishing) string {
		return fmt.Sprintf("%d / %d / %d", p.Size.GPUs, p.Size.Devices, p.Size.Slices)
	})
	row("until all is stored", func(p publishing) string { return fmt.Sprintf("%.0f s", p.Seconds) })
	row("from then until a pod with a claim is bound", func(p publishing) string {
		return fmt.Sprintf("%.1f s", p.Known)
	})
	row("writes for a node: of slices / of the node and its lease", func(p publishing) string {
		n := float64(p.Size.Nodes)
		return fmt.Sprintf("%.2f / %.2f", float64(p.Slices)/n, float64(p.Nodes+p.Leases)/n)
	})
	row("stored size of a slice, mean / largest", func(p publishing) string {
		return fmt.Sprintf("%.1f / %.1f KiB", float64(p.Mean)/1024, float64(p.Max)/1024)
	})
	for _, program := range []string{"API server", "scheduler", "controller"} {
		row("memory of the "+program+", then / at most", func(p publishing) string {
			if p.Memory[program] == 0 {
				return "–" // it did not run
			}
			return fmt.Sprintf("%.0f / %.0f MiB", p.Memory[program], p.Peak[program])
		})
	}
	restarts := func(name string, cell func(restart) string) {
		row(name, func(p publishing) string {
			if p.Restart == nil {
				return "–"
			}
			return cell(*p.Restart)
		})
	}
	restarts("restart of all plugins at once: until the last answer", func(r restart) string {
		return fmt.Sprintf("%.1f s", r.Seconds)
	})
	restarts("– requests of a plugin / of which dry runs", func(r restart) string {
		n := float64(r.Nodes)
		return fmt.Sprintf("%.1f / %.1f", float64(r.Requests)/n, float64(r.DryRuns)/n)
	})
	restarts("– writes of all plugins", func(r restart) string { return fmt.Sprint(r.Writes) })
	restarts("– a small request meanwhile, p50 / p99", func(r restart) string {
		return fmt.Sprintf("%.1f / %.1f ms", r.P50, r.P99)
	})
	restarts("– and before, p50 / p99", func(r restart) string {
		return fmt.Sprintf("%.1f / %.1f ms", r.Idle50, r.Idle99)
	})
	restarts("– memory of the API server, at most", func(r restart) string { return fmt.Sprintf("%.0f MiB", r.Peak) })
}
