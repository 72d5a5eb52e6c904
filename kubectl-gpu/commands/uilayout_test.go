// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"image/png"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

var updatePictures = flag.Bool("update-pictures", false, "write "+picturesFile)

// picturesFile has what the page looks like, a line of digits for each row of squares: see squares.
const picturesFile = "testdata/pictures.json"

// measured is the layout of the page: a box is left, top, right and bottom.
const measured = `(() => {
	const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom].map(Math.round); };
	const all = (of) => [...document.querySelectorAll(of)];
	const shown = (e) => e.checkVisibility() && box(e)[1] < window.innerHeight;
	const cut = (e) => e.scrollWidth > e.clientWidth + 1;
	const light = (color) => { // the relative luminance of WCAG
		const c = document.createElement('canvas').getContext('2d');
		c.fillStyle = color; c.fillRect(0, 0, 1, 1);
		const [r, g, b] = [...c.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
			.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const contrast = (e, on) => {
		const [a, b] = [light(getComputedStyle(e).color), light(getComputedStyle(on).backgroundColor)];
		return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
	};
	const cards = all('.gpu').filter(shown);
	return {
		wide: document.documentElement.scrollWidth,
		blocks: ['h1', '#tiles', '#filters', '#legend', '#signs', '#nodes'].map((s) => document.querySelector(s))
			.filter((e) => e.checkVisibility()).map((e) => [e.id || 'title', box(e)]),
		tiles: all('#tiles button').map((e) => [e.innerText.replace(/\s+/g, ' '), box(e)]),
		nodes: all('.node').filter(shown).map((e) => [e.querySelector('h2').firstChild.textContent, box(e)]),
		cards: cards.map((e) => [e.gpu.node, box(e)]),
		cut: [...all('#tiles button, h1'), ...cards].filter(cut).map((e) => e.innerText),
		dark: light(getComputedStyle(document.body).backgroundColor) < 0.2,
		contrast: Math.min(contrast(document.querySelector('#tiles b'), document.querySelector('#tiles button')),
			contrast(document.querySelector('#summary'), document.querySelector('header')),
			contrast(cards[0], cards[0])),
	};
})()`

type box [4]int

func (b box) inside(o box) bool { return b[0] >= o[0] && b[1] >= o[1] && b[2] <= o[2] && b[3] <= o[3] }

func (b box) width() int { return b[2] - b[0] }

// named is a box with its name, in JSON an array.
type named struct {
	name string
	box  box
}

func (n *named) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&n.name, &n.box})
}

type layout struct {
	Wide                        int
	Blocks, Tiles, Nodes, Cards []named
	Cut                         []string
	Dark                        bool
	Contrast                    float64
}

// faults says what is wrong with the layout of a tab that is so wide, in which nodes are lines or have cards.
func (l *layout) faults(width int, scheme string, lines bool) (all []string) {
	fault := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	screen := box{0, 0, width, 1 << 30}
	fault(l.Wide > width, "the page is %d pixels wide", l.Wide)
	fault(len(l.Cut) > 0, "text is cut: %q", l.Cut)
	fault(l.Dark != (scheme == "dark"), "dark is %v", l.Dark)
	fault(l.Contrast < 4.5, "the contrast of text is %.1f", l.Contrast)
	blocks := "title tiles filters legend signs nodes"
	if width < 600 {
		blocks = strings.ReplaceAll(blocks, "filters ", "") // they are folded
	}
	for i, of := range l.Blocks {
		fault(!of.box.inside(screen), "%s is at %v", of.name, of.box)
		fault(i > 0 && of.box[1] < l.Blocks[max(i, 1)-1].box[3], "%s at %v is not below the one before", of.name,
			of.box)
	}
	fault(listed(l.Blocks) != blocks, "got the blocks %s, want %s", listed(l.Blocks), blocks)
	for i, of := range l.Tiles {
		fault(!of.box.inside(screen) || of.box[3]-of.box[1] > 80, "the tile %s is at %v", of.name, of.box)
		fault(i > 0 && (of.box[0] < l.Tiles[i-1].box[2] || of.box[1] != l.Tiles[i-1].box[1]),
			"the tile %s at %v is not beside the one before", of.name, of.box)
	}
	fault(len(l.Nodes) == 0 || len(l.Cards) == 0 || l.Cards[0].box[1] > 500, "no GPU is at the top")
	of := map[string]box{}
	for i, n := range l.Nodes {
		of[n.name] = n.box
		fault(i > 0 && n.box[1] < l.Nodes[i-1].box[3], "node %s at %v is not below the one before", n.name, n.box)
		fault(i > 1 && n.name <= l.Nodes[i-1].name, "node %s comes too late", n.name)
		fault(lines && width > 1000 && n.box[3]-n.box[1] > 44, "node %s at %v is not one line", n.name, n.box)
	}
	for i, c := range l.Cards {
		fault(!c.box.inside(of[c.name]), "a GPU of node %s at %v is outside of it", c.name, c.box)
		before := l.Cards[max(i, 1)-1]
		fault(before.name == c.name && (c.box.width()-before.box.width())/3 != 0,
			"a GPU of node %s at %v is not as wide as the one before", c.name, c.box)
	}
	return all
}

func listed(all []named) string {
	var names []string
	for _, n := range all {
		names = append(names, n.name)
	}
	return strings.Join(names, " ")
}

// square is the side of the squares of a picture, in pixels.
const square = 45

// squares returns the brightness of each square of a picture, from 0 to f, a line for each row. Fonts of another
// machine change little of it, other places of what is shown much.
func squares(t *testing.T, picture []byte) (lines []string) {
	t.Helper()
	image, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	size := image.Bounds().Size()
	for y := 0; y+square <= size.Y; y += square {
		line := ""
		for x := 0; x+square <= size.X; x += square {
			sum := 0
			for i := range square * square {
				r, g, b, _ := image.At(x+i%square, y+i/square).RGBA()
				sum += int(r>>8+g>>8+b>>8) / 3
			}
			line += fmt.Sprintf("%x", sum/(square*square)/16)
		}
		lines = append(lines, line)
	}
	return lines
}

// differs returns the percentage of squares that are more than one step brighter or darker.
func differs(a, b []string) float64 {
	x, y := strings.Join(a, ""), strings.Join(b, "")
	if len(a) != len(b) || len(x) != len(y) {
		return 100
	}
	n := 0
	step := func(c byte) int { return strings.IndexByte("0123456789abcdef", c) }
	for i := range x {
		if d := step(x[i]) - step(y[i]); d < -1 || d > 1 {
			n++
		}
	}
	return 100 * float64(n) / float64(len(x))
}

// mostDifferent is how many percent of the squares of a picture may be others. TestPageLayout shows that a layout that
// is broken has more.
const mostDifferent = 3

// TestPageLayout: what is shown, where and in which order, on a phone, a laptop and a large screen, light and dark,
// with few nodes and with many; and that a broken layout is noticed.
func TestPageLayout(t *testing.T) {
	few := pageSnapshot(t)
	for name, profile := range map[string]string{"c": "l40s-x4", "d": "a16-x4"} {
		few.Nodes, few.Slices = append(few.Nodes, node(name)), append(few.Slices, published(t, name, profile)...)
	}
	many := fleet(t, 1000)
	many.Slices[500].Spec.Devices[1].Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	wanted, got := map[string][]string{}, map[string][]string{}
	if text, err := os.ReadFile(picturesFile); err == nil {
		if err := json.Unmarshal(text, &wanted); err != nil {
			t.Fatal(err)
		}
	}
	b := newBrowser(t)
	look := func(width int, scheme string) (l layout, picture []string) {
		b.look(t, width, scheme)
		b.eval(t, "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))))")
		if err := json.Unmarshal([]byte(b.eval(t, measured)), &l); err != nil {
			t.Fatal(err)
		}
		return l, squares(t, b.picture(t))
	}
	for _, of := range []struct {
		nodes int
		s     *cluster.Snapshot
		tiles string
		first string // the node
	}{
		{4, few, "18 GPUs 13 free 1 sick 2 waiting", "a"},
		{1000, many, "8000 GPUs 3999 free 1 sick 0 waiting", "node-0500"},
	} {
		page := serve(t, of.s)
		for _, width := range []int{390, 1280, 1920} {
			b.look(t, width, "light")
			b.call(t, "Page.navigate", map[string]any{"url": page.url()})
			b.wait(t, "document.documentElement?.dataset.drawn", fmt.Sprintf("%q", fmt.Sprint(of.nodes)))
			b.wait(t, "document.getElementById('connection').textContent", `"live"`)
			for _, scheme := range []string{"light", "dark"} {
				name := fmt.Sprintf("%d nodes, %d pixels, %s", of.nodes, width, scheme)
				l, picture := look(width, scheme)
				got[name] = picture
				b.screenshot(t, strings.ReplaceAll(strings.ReplaceAll(name, ",", ""), " ", "-"))
				for _, fault := range l.faults(width, scheme, of.nodes > 50) {
					t.Errorf("%s: %s", name, fault)
				}
				if tiles := listed(l.Tiles); tiles != of.tiles {
					t.Errorf("%s: got the tiles %s, want %s", name, tiles, of.tiles)
				}
				if l.Nodes[0].name != of.first {
					t.Errorf("%s: got node %s first, want %s, which has a sick GPU", name, l.Nodes[0].name, of.first)
				}
				if n := differs(picture, wanted[name]); n > mostDifferent && !*updatePictures {
					t.Errorf("%s: %.1f %% of the picture differ; SCREENSHOTS=FOLDER writes it, -update-pictures "+
						"accepts it\ngot\n%s\nwant\n%s", name, n, strings.Join(picture, "\n"),
						strings.Join(wanted[name], "\n"))
				}
			}
		}
		if of.nodes != 4 {
			continue
		}
		for _, broken := range []string{"#tiles { display: none !important }", ".cards { display: block !important }",
			"#nodes { position: absolute; top: 0 }", "#tiles { width: 2500px }", ":root { --text: #999 !important }"} {
			b.eval(t, fmt.Sprintf("document.styleSheets[0].insertRule(%q, document.styleSheets[0].cssRules.length)",
				broken))
			l, picture := look(1920, "light")
			if n := differs(picture, got["4 nodes, 1920 pixels, light"]); len(l.faults(1920, "light", false)) == 0 &&
				n <= mostDifferent {
				t.Errorf("%s: no fault is found, and %.1f %% of the picture differ", broken, n)
			}
			b.eval(t, "document.styleSheets[0].deleteRule(document.styleSheets[0].cssRules.length - 1)")
		}
	}
	if *updatePictures {
		text, err := json.MarshalIndent(got, "", " ")
		if err == nil {
			err = os.WriteFile(picturesFile, append(text, '\n'), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
