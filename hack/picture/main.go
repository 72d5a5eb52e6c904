// SPDX-License-Identifier: Apache-2.0

// Picture writes an animated SVG: what commands print on the cluster of $KUBECONFIG, one after the other. On the
// cluster of `make demo`, with kubectl and kubectl-gpu in $PATH:
//
//	go run ./hack/picture 'kubectl gpu ls' 'kubectl gpu why POD' > docs/kubectl-gpu.svg
package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

const (
	columns, rows = 110, 24
	cellWidth     = 8.4 // of a monospaced font of 14 px
	lineHeight    = 19
	margin        = 16
	seconds       = 5 // each command is shown
)

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

func main() {
	frames := make([][]string, len(os.Args)-1)
	for i, command := range os.Args[1:] {
		// script gives it a terminal, whose width some commands fill.
		output, err := exec.Command("script", "-qec", fmt.Sprintf("stty cols %d; %s", columns, command),
			"/dev/null").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", command, err, output)
			os.Exit(1)
		}
		text := strings.TrimSpace(strings.ReplaceAll(colors.ReplaceAllString(string(output), ""), "\r\n", "\n"))
		frames[i] = append([]string{"$ " + command}, fold(strings.Split(text, "\n"))...)
	}
	os.Stdout.WriteString(render(frames))
}

// fold breaks lines as a terminal does.
func fold(lines []string) []string {
	var folded []string
	for _, line := range lines {
		rest := []rune(line)
		for ; len(rest) > columns; rest = rest[columns:] {
			folded = append(folded, string(rest[:columns]))
		}
		folded = append(folded, string(rest))
	}
	return folded
}

// render returns the picture of the frames, of which each is a list of lines. Lines below the last row are left out.
func render(frames [][]string) string {
	var svg bytes.Buffer
	width, height := int(columns*cellWidth)+2*margin, rows*lineHeight+2*margin
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">
<style>
text { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #d8dee9; white-space: pre }
.command { fill: #a3d977 }
g { opacity: 0; animation: show %ds step-end infinite }
@keyframes show { 0%% { opacity: 1 } %.4f%% { opacity: 0 } }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#1d232e"/>
`, width, height, width, height, seconds*len(frames), 100/float64(len(frames)))
	for i, lines := range frames {
		fmt.Fprintf(&svg, "<g style=\"animation-delay: %ds\">\n", i*seconds)
		for n, line := range lines[:min(len(lines), rows)] {
			class := ""
			if n == 0 {
				class = ` class="command"`
			}
			fmt.Fprintf(&svg, `<text x="%d" y="%d"%s xml:space="preserve">`, margin, margin+(n+1)*lineHeight-5, class)
			_ = xml.EscapeText(&svg, []byte(line))
			svg.WriteString("</text>\n")
		}
		svg.WriteString("</g>\n")
	}
	svg.WriteString("</svg>\n")
	return svg.String()
}
