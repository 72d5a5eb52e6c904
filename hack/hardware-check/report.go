// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpudra/gpu-dra-driver/internal/check"
)

// result is the outcome of a step.
type result string

const (
	verified result = "verified"
	failed   result = "FAILED"
	skipped  result = "skipped" // the detail says why
)

// line is a line of the report.
type line struct {
	result       result
	what, detail string
}

// checker runs the steps and collects their results.
type checker struct {
	options
	dir    string // for the steps' files; removed at the end
	report check.Report
	json   []byte // the report as the command check printed it
	record []byte // masked
	lines  []line
}

func (e *checker) add(r result, what, format string, args ...any) {
	e.lines = append(e.lines, line{r, what, fmt.Sprintf(format, args...)})
}

// expect reports verified without an error, and failed otherwise.
func (e *checker) expect(err error, what, format string, args ...any) {
	if err != nil {
		e.add(failed, what, "%v", err)
		return
	}
	e.add(verified, what, format, args...)
}

func (e *checker) count(r result) int {
	n := 0
	for _, l := range e.lines {
		if l.result == r {
			n++
		}
	}
	return n
}

// write prints the report and, with -out, writes it and the other files for a bug report.
func (e *checker) write(out io.Writer) error {
	var b strings.Builder
	d := e.report.Driver
	fmt.Fprintf(&b, "# Hardware check\n\nDriver %s, NVML %s, CUDA %s, kernel %s, %d GPUs: %d verified, %d failed, %d "+
		"skipped.\n\n", d.Version, d.NVML, d.CUDA,
		e.report.Host.Kernel, len(e.report.GPUs), e.count(verified), e.count(failed), e.count(skipped))
	b.WriteString("| result | what | detail |\n|---|---|---|\n")
	cell := strings.NewReplacer("|", "\\|", "\n", " ")
	for _, l := range e.lines {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", l.result, cell.Replace(l.what), cell.Replace(l.detail))
	}
	if _, err := io.WriteString(out, b.String()); err != nil || e.out == "" {
		return err
	}
	if err := os.MkdirAll(e.out, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{"report.md": []byte(b.String()), "check.json": e.json,
		"recording.yaml": e.record} {
		if err := os.WriteFile(filepath.Join(e.out, name), content, 0o644); err != nil { //nolint:gosec // for others to read
			return err
		}
	}
	return nil
}
