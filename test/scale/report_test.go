// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestDigits(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.00123: "0.0012", 0.05: "0.050", 0.4: "0.40", 5.11: "5.1",
		9.96: "10", 61.2: "61", 273.4: "273"} {
		if got := digits(n); got != want {
			t.Errorf("%v: got %s, want %s", n, got, want)
		}
	}
}

// A part that was never measured is not in the tables, and a program that did not run has no memory.
func TestTables(t *testing.T) {
	got := tables([]rates{{Layout: "ten devices", Nodes: 5, Fills: []fillRates{{Percent: 50,
		None: []float64{100, 90, 80}, Kinds: []kindRates{{Kind: "one",
			PodsSecond: []float64{9, 8, 7}, Ratio: []float64{0.1, 0.2, 0.3}}}}}}},
		nil, []searches{{Nodes: 5, Columns: []string{"all"}, Rows: []searched{
			{Kind: "one", Millis: []float64{1}}, {Kind: "one", Percent: 50, Millis: []float64{2}}}}})
	const want = `| milliseconds for one node of 5, 0 % / 50 % held | all |
|---|---:|
| one | 1.00 / 2.00 |

| 5 nodes, ten devices | 50 % held |
|---|---:|
| no claim | 90/s |
| one | 8.0/s, 0.20 (0.10–0.30) |

`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
