// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// output are the flags for the format of the output.
type output struct {
	format    string
	noHeaders bool
	formats   []string                 // besides those of genericclioptions
	printer   printers.ResourcePrinter // of the format; nil for tables and for formats of the command
}

// The formats besides those of genericclioptions.
const (
	wide  = "wide"
	names = "name"
)

// addFlags adds the flags, which are checked before the command connects and runs; its RunE is set already. formats are
// those besides JSON and YAML.
func (o *output) addFlags(p *plugin, cmd *cobra.Command, formats ...string) {
	o.formats = formats
	cmd.Flags().StringVarP(&o.format, "output", "o", "",
		"Output format. One of: ("+strings.Join(o.allowed(), ", ")+").")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Print tables without headers.")
	completeFlag(cmd, "output", fixed(o.allowed()))
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error { // after cobra has checked what flags are required
		if err := o.check(); err != nil {
			return err
		}
		if err := p.connect(); err != nil {
			return err
		}
		return run(cmd, args)
	}
}

// shown is how many names a cell has.
func (o *output) shown() int {
	if o.format == wide {
		return math.MaxInt
	}
	return 3
}

// completeFlag completes the values of a flag.
func completeFlag(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	utilruntime.Must(cmd.RegisterFlagCompletionFunc(flag, complete)) // the flag exists
}

// fixed completes values that are always the same.
func fixed(values []string) cobra.CompletionFunc {
	return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
}

func (o *output) allowed() []string {
	return append(genericclioptions.NewJSONYamlPrintFlags().AllowedFormats(), o.formats...)
}

// check sets the printer.
func (o *output) check() (err error) {
	if o.format == "" || slices.Contains(o.formats, o.format) {
		return nil
	}
	o.printer, err = genericclioptions.NewJSONYamlPrintFlags().ToPrinter(o.format)
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return genericclioptions.NoCompatiblePrinterError{OutputFormat: &o.format, AllowedFormats: o.allowed()}
	}
	return err
}

// list is a list that printers can print as JSON or YAML.
type list[T any] struct {
	metav1.TypeMeta `json:",inline"`
	Items           []T `json:"items"`
}

// newList returns a list of that kind. An empty one is written as [].
func newList[T any](kind string, items []T) *list[T] {
	if items == nil {
		items = []T{}
	}
	return &list[T]{metav1.TypeMeta{APIVersion: "kubectl-gpu/v1", Kind: kind}, items}
}

// DeepCopyObject implements runtime.Object. Printers do not change items.
func (l *list[T]) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = slices.Clone(l.Items)
	return &c
}

type table struct {
	header []string
	rows   []row
	wide   []string // names of columns that only -o wide shows
	// optional are the names of columns that a narrow terminal does not show, the least important one first.
	optional []string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, row{cells: cells}) }

func (t *table) drop(columns ...string) {
	for _, name := range columns {
		at := slices.Index(t.header, name)
		t.header = slices.Delete(t.header, at, at+1)
		for i := range t.rows {
			t.rows[i].cells = slices.Delete(t.rows[i].cells, at, at+1)
		}
	}
}

// bars are those of cells, with the space after them.
var bars = regexp.MustCompile("[" + full + empty + "]+ ")

// within returns what of the table fits into so many columns of a terminal: all, or it without bars and long cells,
// then without columns that say nothing, and then without optional ones. Of the last column, which printTable cuts,
// some characters are enough.
func (t table) within(columns int) table {
	const enough = 30 // characters of a cell
	last := len(t.header) - 1
	width := func() int {
		sum := 0
		for i, name := range t.header {
			most := len(name)
			for _, r := range t.rows {
				most = max(most, utf8.RuneCountInString(r.cells[i]))
			}
			if i == last {
				return sum + min(most, enough)
			}
			sum += most + 3 // as kubectl
		}
		return sum
	}
	if width() <= columns {
		return t
	}
	rows := make([]row, len(t.rows))
	for i, r := range t.rows {
		rows[i] = row{make([]string, len(r.cells)), r.bad}
		for j, cell := range r.cells {
			cell = bars.ReplaceAllString(cell, "")
			if 0 < j && j < last {
				cell = cut(cell, enough)
			}
			rows[i].cells[j] = cell
		}
	}
	t = table{header: slices.Clone(t.header), rows: rows, optional: t.optional}
	var silent []string
	for i, name := range t.header[:last] {
		if !slices.ContainsFunc(rows, func(r row) bool { return r.cells[i] != none }) {
			silent = append(silent, name)
		}
	}
	for _, name := range append(silent, t.optional...) {
		if width() > columns && slices.Contains(t.header, name) {
			t.drop(name)
			last--
		}
	}
	return t
}

// cut cuts lines to so many columns.
func cut(text string, columns int) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if runes := []rune(line); len(runes) > columns {
			lines[i] = string(runes[:columns-1]) + "…"
		}
	}
	return strings.Join(lines, "\n")
}

// printList prints the items with the printer, or their names, or the table. Without items it prints the text nothing
// instead of the table.
func printList[T any](p *plugin, o output, kind string, items []T, name func(T) string, nothing string,
	t table) error {
	switch {
	case o.printer != nil:
		return o.printer.PrintObj(newList(kind, items), p.Out)
	case o.format == names:
		for _, item := range items {
			fmt.Fprintln(p.Out, why.Printable(name(item)))
		}
		return nil
	case len(items) == 0:
		fmt.Fprintln(p.ErrOut, nothing)
		return nil
	}
	return p.printTable(t, o)
}

// printEach prints the items with the printer, or one after the other with the function.
func printEach[T any](p *plugin, o output, kind string, items []T, text func(T, io.Writer) error) error {
	if o.printer != nil {
		return o.printer.PrintObj(newList(kind, items), p.Out)
	}
	var all []error
	for i, item := range items {
		if i > 0 {
			fmt.Fprintln(p.Out)
		}
		all = append(all, text(item, p.Out))
	}
	return errors.Join(all...)
}

// row is a row of a table. On a terminal a bad one is red.
type row struct {
	cells []string
	bad   bool
}

// printTable prints the table in the way of kubectl. On a terminal it prints what fits, if -o wide prints the rest.
func (p *plugin) printTable(t table, o output) error {
	if o.format != wide {
		t.drop(t.wide...)
	}
	columns := 0
	if o.format == "" && slices.Contains(o.formats, wide) {
		columns = p.columns()
	}
	if columns > 0 {
		t = t.within(columns)
	}
	var plain strings.Builder
	if err := t.write(&plain, o); err != nil {
		return err
	}
	text := plain.String()
	if columns > 0 {
		text = cut(text, columns)
	}
	if p.colours() {
		text = coloured(text, t, o)
	}
	_, err := io.WriteString(p.Out, text)
	return err
}

// write writes all of the table.
func (t table) write(out io.Writer, o output) error {
	w := printers.GetNewTabWriter(out)
	if !o.noHeaders {
		fmt.Fprintln(w, strings.Join(t.header, "\t"))
	}
	for _, r := range t.rows {
		for i, cell := range r.cells {
			r.cells[i] = why.Printable(cell)
		}
		fmt.Fprintln(w, strings.Join(r.cells, "\t"))
	}
	return w.Flush()
}

// The codes of colours of a terminal.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	normal = "\x1b[0m"
)

// filled is the allocated part of a bar.
var filled = regexp.MustCompile(full + "+")

// coloured colours the lines of a printed table.
func coloured(text string, t table, o output) string {
	var out strings.Builder
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if !o.noHeaders {
		out.WriteString(bold + lines[0] + normal)
		lines = lines[1:]
	}
	for i, line := range lines {
		if t.rows[i].bad {
			out.WriteString(red + line + normal)
			continue
		}
		out.WriteString(filled.ReplaceAllString(line, yellow+"$0"+normal))
	}
	return out.String() + "\n"
}

// The characters of bars.
const (
	full  = "█"
	empty = "░"
)

// barWidth is the width of bars. One is full only if everything is allocated, and empty only if nothing is.
const barWidth = 10

// bar draws how much is allocated. It is empty if that is unknown.
func bar(a Amount) string {
	if a.Used == nil || a.Total <= 0 {
		return ""
	}
	n := int(min(max(0, min(1, *a.Used), *a.Used*barWidth/a.Total), barWidth))
	return strings.Repeat(full, n) + strings.Repeat(empty, barWidth-n)
}

const (
	mi = 1 << 20
	gi = 1 << 30
)

// size returns bytes in GiB, or in MiB below 1 GiB.
func size(bytes int64) string {
	switch {
	case bytes == 0:
		return "0"
	case bytes < gi:
		return fmt.Sprintf("%dMi", bytes/mi)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/gi), ".0") + "Gi"
}

// age returns the time since then, as kubectl writes it.
func age(since *metav1.Time) string {
	if since.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(since.Time))
}

// none is printed in empty cells, as kubectl does.
const none = "<none>"

// few returns the texts, or that many and how many more there are.
func few(all []string, most int) []string {
	if len(all) <= most {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("and %d more", len(all)-most))
}

// joined returns the texts, or none.
func joined(all []string) string { return cmp.Or(strings.Join(all, ", "), none) }
