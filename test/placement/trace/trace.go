// SPDX-License-Identifier: Apache-2.0

// Package trace has the nodes and pods of a cluster for comparisons of placement. Read takes them from the CSV files of
// the public trace openb; Generate makes them up, for those who do not have it. Either is a Trace: nodes with identical
// GPUs of one model, and the pods that once ran there, in the order of the file. What arrives in a comparison is drawn
// from these pods: Fill for pods that stay, Churn for pods that leave. Same trace and same seed, same pods.
package trace

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Whole is all of a GPU. Amounts of GPUs are in thousandths.
const Whole = 1000

// Node is a node of the cluster.
type Node struct {
	Name   string
	CPU    int64 // in thousandths of a core
	Memory int64 // in MiB
	GPUs   int
	Model  string // of all its GPUs; empty if it has none
}

// Pod is what a pod requests.
type Pod struct {
	Name   string
	CPU    int64    // in thousandths of a core
	Memory int64    // in MiB
	GPUs   int      // how many different GPUs of one node; 0 for a pod without GPUs
	Amount int64    // of each GPU, in thousandths: Whole, or less with one GPU. 0 without GPUs.
	Models []string // the models that it accepts, sorted, each once; empty if it accepts all
}

// Accepts tells whether GPUs of the model will do for the pod.
func (p Pod) Accepts(model string) bool {
	return len(p.Models) == 0 || slices.Contains(p.Models, model)
}

// Total is the pod's amount of all its GPUs, in thousandths.
func (p Pod) Total() int64 { return int64(p.GPUs) * p.Amount }

// Trace is the nodes of a cluster, at least one of which has a GPU, and pods, at least one of which requests a GPU.
type Trace struct {
	Name  string
	Nodes []Node
	Pods  []Pod
}

// GPUs returns the number of GPUs of all nodes.
func (t Trace) GPUs() int {
	n := 0
	for _, node := range t.Nodes {
		n += node.GPUs
	}
	return n
}

const (
	nodesFile  = "openb_node_list_gpu_node.csv"
	podsPrefix = "openb_pod_list_"
)

// Names returns the names of the pod lists in the folder, sorted: NAME of each file openb_pod_list_NAME.csv. It is an
// error if there is none.
func Names(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, podsPrefix+"*.csv"))
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", dir, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read trace %s: no file %sNAME.csv", dir, podsPrefix)
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), podsPrefix), ".csv"))
	}
	slices.Sort(names)
	return names, nil
}

// Read reads the folder's node list, openb_node_list_gpu_node.csv, and the pod list openb_pod_list_NAME.csv. The first
// line of a file names its columns; other columns than those of Node and Pod are ignored, and gpu_spec may be missing.
// An error names the file, the line and the column.
func Read(dir, name string) (Trace, error) {
	t := Trace{Name: name}
	err := rows(filepath.Join(dir, nodesFile), func(r row) error {
		n := Node{Name: r.text("sn"), CPU: r.number("cpu_milli"), Memory: r.number("memory_mib"),
			GPUs: int(r.number("gpu")), Model: r.optional("model")}
		if n.GPUs > 0 && n.Model == "" {
			r.refuse("model", "the model of the node's GPUs")
		}
		t.Nodes = append(t.Nodes, n)
		return *r.err
	})
	if err != nil {
		return Trace{}, err
	}
	file := filepath.Join(dir, podsPrefix+name+".csv")
	err = rows(file, func(r row) error {
		p := Pod{Name: r.text("name"), CPU: r.number("cpu_milli"), Memory: r.number("memory_mib"),
			GPUs: int(r.number("num_gpu")), Amount: r.number("gpu_milli"), Models: models(r.optional("gpu_spec"))}
		switch {
		case p.GPUs == 0:
			p.Amount, p.Models = 0, nil
		case p.GPUs == 1 && (p.Amount < 1 || p.Amount > Whole):
			r.refuse("gpu_milli", "1 to 1000 for one GPU")
		case p.GPUs > 1 && p.Amount != Whole:
			r.refuse("gpu_milli", "1000 for several GPUs")
		}
		t.Pods = append(t.Pods, p)
		return *r.err
	})
	if err != nil {
		return Trace{}, err
	}
	if t.GPUs() == 0 {
		return Trace{}, fmt.Errorf("read %s: no node has a GPU", filepath.Join(dir, nodesFile))
	}
	if !slices.ContainsFunc(t.Pods, func(p Pod) bool { return p.GPUs > 0 }) {
		return Trace{}, fmt.Errorf("read %s: no pod requests a GPU", file)
	}
	return t, nil
}

func models(spec string) []string {
	if spec == "" {
		return nil
	}
	m := strings.Split(spec, "|")
	slices.Sort(m)
	return slices.Compact(m)
}

// row is a line of a file. The first value that is refused is its error.
type row struct {
	where   string // file:line
	columns map[string]int
	values  []string
	err     *error
}

// rows calls use for each line after the first.
func rows(file string, use func(row) error) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	reader := csv.NewReader(f)
	names, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: empty; its first line names the columns", file)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	columns := map[string]int{}
	for i, name := range names {
		columns[name] = i
	}
	for {
		values, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		line, _ := reader.FieldPos(0)
		var refused error
		err = use(row{where: fmt.Sprintf("%s:%d", file, line), columns: columns, values: values, err: &refused})
		if err != nil {
			return err
		}
	}
}

func (r row) optional(column string) string {
	if i, ok := r.columns[column]; ok {
		return r.values[i]
	}
	return ""
}

func (r row) text(column string) string {
	v := r.optional(column)
	if v == "" {
		r.refuse(column, "text that is not empty")
	}
	return v
}

func (r row) number(column string) int64 {
	n, err := strconv.ParseInt(r.optional(column), 10, 32)
	if err != nil || n < 0 {
		r.refuse(column, "a whole number from 0 to 2147483647")
	}
	return n
}

func (r row) refuse(column, accepted string) {
	if *r.err != nil {
		return
	}
	if _, ok := r.columns[column]; !ok {
		*r.err = fmt.Errorf("%s: column %s is missing", r.where, column)
		return
	}
	*r.err = fmt.Errorf("%s: column %s: %q is not accepted: %s", r.where, column, r.optional(column), accepted)
}

// Fill returns pods that arrive one after the other and stay: those of the trace in random order, cut off or topped up
// with random ones of them when they request the share of all GPUs, for example 1.3 for 130 %.
func (t Trace) Fill(seed uint64, share float64) []Pod {
	rng := rand.New(rand.NewPCG(seed, 0))
	wanted := int64(share * float64(t.GPUs()) * Whole)
	var pods []Pod
	var sum int64
	for _, i := range rng.Perm(len(t.Pods)) {
		if sum >= wanted {
			return pods
		}
		pods, sum = append(pods, t.Pods[i]), sum+t.Pods[i].Total()
	}
	for sum < wanted {
		p := t.Pods[rng.IntN(len(t.Pods))]
		pods, sum = append(pods, p), sum+p.Total()
	}
	return pods
}

// Visit is a pod that comes and goes. Times are in mean lifetimes of pods since the start.
type Visit struct {
	Pod
	Arrives float64
	Runs    float64 // how long, once it is placed
}

// Churn returns n visits in the order of arrival: random pods of the trace, with exponential times between arrivals and
// exponential lifetimes. If all pods were placed at once, they would hold the share load of all GPUs on average.
func (t Trace) Churn(seed uint64, load float64, n int) []Visit {
	rng := rand.New(rand.NewPCG(seed, 1))
	var sum int64
	for _, p := range t.Pods {
		sum += p.Total()
	}
	mean := float64(sum) / float64(len(t.Pods)) / Whole // GPUs of a pod
	rate := load * float64(t.GPUs()) / mean             // arrivals in a lifetime
	visits := make([]Visit, n)
	var now float64
	for i := range visits {
		now += rng.ExpFloat64() / rate
		visits[i] = Visit{t.Pods[rng.IntN(len(t.Pods))], now, rng.ExpFloat64()}
	}
	return visits
}
