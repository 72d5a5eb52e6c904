// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const (
	nodeList = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,8000,16384,0,\n"
	podList  = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n" +
		"a,12000,16384,1,460,V100|P100|V100,LS\nb,500,1024,2,1000,,BE\nc,1000,2048,0,0,P100,LS\n"
)

func folder(t *testing.T, nodes, pods string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{nodesFile: nodes, podsPrefix + "x.csv": pods} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRead(t *testing.T) {
	dir := folder(t, nodeList, podList)
	names, err := Names(dir)
	if err != nil || !reflect.DeepEqual(names, []string{"x"}) {
		t.Fatalf("got the names %v, %v, want [x]", names, err)
	}
	got, err := Read(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	want := Trace{Name: "x",
		Nodes: []Node{{"n0", 64000, 262144, 2, "P100"}, {"n1", 8000, 16384, 0, ""}},
		Pods: []Pod{{"a", 12000, 16384, 1, 460, []string{"P100", "V100"}}, {"b", 500, 1024, 2, 1000, nil},
			{"c", 1000, 2048, 0, 0, nil}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReadErrors(t *testing.T) {
	const pods, nodes = podsPrefix + "x.csv", nodesFile
	for _, test := range []struct{ name, old, new, want string }{
		{"not a number", "12000", "12cores", pods + `:2: column cpu_milli: "12cores" is not accepted: a whole`},
		{"a negative number", "1024", "-1", pods + `:3: column memory_mib: "-1" is not accepted`},
		{"half of two GPUs", "2,1000", "2,500", pods + `:3: column gpu_milli: "500" is not accepted: 1000 for`},
		{"nothing of a GPU", "1,460", "1,0", pods + `:2: column gpu_milli: "0" is not accepted: 1 to 1000 for`},
		{"a column that is missing", "num_gpu", "gpus", pods + ":2: column num_gpu is missing"},
		{"a value too many", "BE", "BE,1", pods + ": record on line 3: wrong number of fields"},
		{"an empty list", podList, "", pods + ": empty; its first line names the columns"},
		{"a node without a name", "n1", "", nodes + `:3: column sn: "" is not accepted: text that is not empty`},
		{"GPUs without a model", "P100\nn1", "\nn1", nodes + `:2: column model: "" is not accepted`},
		{"no GPUs", "262144,2", "262144,0", nodes + ": no node has a GPU"},
	} {
		t.Run(test.name, func(t *testing.T) {
			replace := func(list string) string { return strings.Replace(list, test.old, test.new, 1) }
			dir := folder(t, replace(nodeList), replace(podList))
			if _, err := Read(dir, "x"); err == nil || !strings.Contains(err.Error(), dir+"/"+test.want) {
				t.Errorf("got %v, want …%s", err, test.want)
			}
		})
	}
	if _, err := Names(t.TempDir()); err == nil {
		t.Error("a folder without pod lists is accepted")
	}
}

func TestGenerate(t *testing.T) {
	g := Generate(1, 100)
	if !reflect.DeepEqual(g, Generate(1, 100)) || reflect.DeepEqual(g, Generate(2, 100)) {
		t.Error("a seed must give the same trace again, and another seed another")
	}
	if len(g.Nodes) != 100 || g.GPUs() != 30*2+20*4+15*8+35*8 {
		t.Errorf("got %d nodes with %d GPUs", len(g.Nodes), g.GPUs())
	}
	for _, p := range g.Pods {
		fits := false
		for _, n := range g.Nodes {
			fits = fits || n.CPU >= p.CPU && n.Memory >= p.Memory && n.GPUs >= p.GPUs &&
				(p.GPUs == 0 || p.Accepts(n.Model))
		}
		if !fits {
			t.Fatalf("%+v fits on no node", p)
		}
	}
}

func TestFillRequestsTheShareAsked(t *testing.T) {
	g := Generate(1, 40)
	for _, share := range []float64{0.5, 1.3, 3} { // cut off and topped up
		var sum int64
		for _, p := range g.Fill(7, share) {
			sum += p.Total()
		}
		if got := float64(sum) / Whole / float64(g.GPUs()); got < share || got > share+0.1 {
			t.Errorf("share %v: the pods request %v of the GPUs", share, got)
		}
	}
	if !reflect.DeepEqual(g.Fill(7, 1.3), g.Fill(7, 1.3)) || reflect.DeepEqual(g.Fill(7, 1.3), g.Fill(8, 1.3)) {
		t.Error("a seed must give the same pods again, and another seed others")
	}
}

func TestChurnOffersTheLoadAsked(t *testing.T) {
	g := Generate(1, 40)
	visits := g.Churn(7, 0.95, 50_000)
	var held float64 // GPUs times lifetimes
	for _, v := range visits {
		held += float64(v.Total()) / Whole * v.Runs
	}
	load := held / visits[len(visits)-1].Arrives / float64(g.GPUs())
	if math.Abs(load-0.95) > 0.03 {
		t.Errorf("the pods hold %v of the GPUs, want 0.95", load)
	}
}
