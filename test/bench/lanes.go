// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
)

// lane is when a program runs for pods of each kind, in medians; nil for a kind that does not run it.
type lane struct {
	name string
	runs []*span
}

// span has milliseconds since the pod was created.
type span struct{ begin, took float64 }

// lanesOf returns the programs in the order of time, as pods of the last kind run them.
func lanesOf(kinds [][]parts) []lane {
	type seen struct{ begin, took samples }
	all := map[string][]seen{} // by name; of each kind
	for kind, pods := range kinds {
		for _, pod := range pods {
			for name, r := range named(pod.programs) {
				if all[name] == nil {
					all[name] = make([]seen, len(kinds))
				}
				of := &all[name][kind]
				of.begin, of.took = append(of.begin, r.begin), append(of.took, r.end-r.begin)
			}
		}
	}
	var lanes []lane
	for name, of := range all {
		l := lane{name, make([]*span, len(kinds))}
		for kind, s := range of {
			if len(s.begin) > len(kinds[kind])/2 { // not what only some pods run
				l.runs[kind] = &span{s.begin.p50(), s.took.p50()}
			}
		}
		if l.runs[len(kinds)-1] != nil {
			lanes = append(lanes, l)
		}
	}
	slices.SortFunc(lanes, func(a, b lane) int {
		return cmp.Or(cmp.Compare(a.runs[len(kinds)-1].begin, b.runs[len(kinds)-1].begin), cmp.Compare(a.name, b.name))
	})
	return lanes
}

// named gives the runs of a pod different names. What containerd reads is one run: it begins with the first read, and
// takes as long as all.
func named(runs []ran) map[string]ran {
	out := map[string]ran{}
	times := map[string]int{}
	for _, r := range runs {
		times[r.name]++
		name := r.name
		switch n := times[r.name]; {
		case r.name == cdiRead:
			if first, found := out[name]; found {
				r.begin, r.end = first.begin, first.end+r.end-r.begin
			}
		case strings.HasPrefix(r.name, "runc "):
			name += []string{" (sandbox)", " (container)"}[min(n, 2)-1]
		case n > 1:
			name += fmt.Sprintf(" (%d)", n)
		}
		out[name] = r
	}
	return out
}

func laneTable(lanes []lane) string {
	var text strings.Builder
	text.WriteString("When programs run for a pod, in milliseconds since it was created (medians of the same " +
		"pods):\n\n")
	text.WriteString("| | without: begins | takes | with a claim: begins | takes |\n|---|---:|---:|---:|---:|\n")
	for _, l := range lanes {
		fmt.Fprintf(&text, "| %s |", l.name)
		for _, r := range l.runs {
			if r == nil {
				text.WriteString(" | |")
				continue
			}
			fmt.Fprintf(&text, " %.0f | %s |", r.begin, formatValues([]float64{r.took}))
		}
		text.WriteString("\n")
	}
	return text.String()
}

// Sizes in the picture, in pixels.
const (
	pictureLeft, pictureWidth        = 120, 760 // of the bars
	laneLeft, laneWidth, laneHeight  = 330, 550, 9
	barHeight, barGap, lineHeight    = 34, 14, 20
	pictureTop, pictureRight, margin = 16, 80, 6
)

// timelinePicture draws the phases as bars, one below the other, and below them the lanes.
func timelinePicture(medians [][]float64, lanes []lane) string {
	longest := slices.Max([]float64{medians[0][len(phases)], medians[1][len(phases)]})
	var body strings.Builder
	rect := func(x float64, y int, width float64, height int, colour, title string) {
		fmt.Fprintf(&body, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>%s</title>"+
			"</rect>\n", x, y, width, height, colour, html.EscapeString(title))
	}
	label := func(x float64, y int, words string) {
		fmt.Fprintf(&body, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", x, y, html.EscapeString(words))
	}
	y := pictureTop
	for i, name := range []string{"without a claim", "with a claim"} {
		label(8, y+barHeight/2+4, name)
		x := float64(pictureLeft)
		for p, phase := range phases {
			if phase.colour == "" {
				continue
			}
			w := medians[i][p] / longest * pictureWidth
			rect(x, y, w, barHeight, phase.colour, phase.name+": "+formatValues(medians[i][p:p+1])+" ms")
			x += w
		}
		label(x+margin, y+barHeight/2+4, formatValues(medians[i][len(phases):])+" ms")
		y += barHeight + barGap
	}
	for _, phase := range phases {
		if phase.colour == "" {
			continue
		}
		rect(pictureLeft, y, 12, 12, phase.colour, phase.name)
		label(pictureLeft+20, y+11, phase.name)
		y += lineHeight
	}
	y += barGap
	label(8, y+11, "When programs run: grey without, green with a claim")
	for _, l := range lanes {
		y += lineHeight
		label(8, y+13, l.name)
		for kind, r := range l.runs {
			if r == nil {
				continue
			}
			rect(laneLeft+r.begin/longest*laneWidth, y+kind*laneHeight, max(r.took/longest*laneWidth, 1), laneHeight,
				[]string{"#bbbbbb", "#1b9e77"}[kind],
				fmt.Sprintf("from %.0f ms on: %s ms", r.begin, formatValues([]float64{r.took})))
		}
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "+
		"font-size=\"13\" role=\"img\">\n<title>Where the time of a pod's start goes, without and with a claim"+
		"</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n",
		pictureLeft+pictureWidth+pictureRight, y+lineHeight+margin, body.String())
}
