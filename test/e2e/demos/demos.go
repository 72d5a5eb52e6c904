// SPDX-License-Identifier: Apache-2.0

// Package demos applies a folder of demo/, reports in three lines what was requested, what was allocated and what the
// container saw, and compares that with the folder's README.
package demos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// Demo is a folder of demo/.
type Demo struct {
	Name     string   // of the folder
	Title    string   // of the README
	Asked    string   // the README's first paragraph
	Expected []string // the README's expected block
	Objects  []*unstructured.Unstructured
}

// Load reads every folder of a directory, sorted by name.
func Load(dir string) ([]Demo, error) {
	readmes, err := filepath.Glob(filepath.Join(dir, "*", "README.md"))
	if err != nil {
		return nil, err
	}
	if len(readmes) == 0 {
		return nil, fmt.Errorf("load demos: no folder with a README.md in %s", dir)
	}
	var all []Demo
	for _, readme := range readmes {
		demo, err := load(filepath.Dir(readme))
		if err != nil {
			return nil, fmt.Errorf("load demo %s: %w", filepath.Dir(readme), err)
		}
		all = append(all, demo)
	}
	return all, nil
}

func load(dir string) (Demo, error) {
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return Demo{}, err
	}
	title, _, _ := strings.Cut(strings.TrimPrefix(string(readme), "# "), "\n")
	demo := Demo{Name: filepath.Base(dir), Title: title, Asked: asked(string(readme))}
	if demo.Expected, err = expected(string(readme)); err != nil {
		return Demo{}, fmt.Errorf("README.md: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return Demo{}, err
	}
	for _, file := range files {
		objects, err := decode(file)
		if err != nil {
			return Demo{}, fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		demo.Objects = append(demo.Objects, objects...)
	}
	if len(demo.Namespaces()) == 0 {
		return Demo{}, errors.New("no Namespace among the objects: a demo lives in one of its own")
	}
	return demo, nil
}

func decode(file string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// Namespaces returns the names of the namespaces that the demo creates.
func (d Demo) Namespaces() []string {
	var names []string
	for _, o := range d.Objects {
		if o.GetKind() == "Namespace" {
			names = append(names, o.GetName())
		}
	}
	return names
}

// needsAnnotation on a demo's namespace has what the demo needs of the cluster, separated by commas: see kube.Lacks.
const needsAnnotation = "demo.gpu-dra-driver/needs"

// Lacks returns the feature gates that the demo needs and the cluster does not have.
func (d Demo) Lacks(ctx context.Context, cluster *kube.Cluster) ([]string, error) {
	var needs []string
	for _, o := range d.Objects {
		if text := o.GetAnnotations()[needsAnnotation]; o.GetKind() == "Namespace" && text != "" {
			needs = append(needs, strings.Split(text, ",")...)
		}
	}
	return cluster.Lacks(ctx, needs...)
}

// aloneAnnotation on a demo's namespace means that the demo needs GPUs that other demos may hold.
const aloneAnnotation = "demo.gpu-dra-driver/alone"

// FreeGPUs deletes the pods and claims of all demos if this demo needs their GPUs.
func (d Demo) FreeGPUs(ctx context.Context, cluster *kube.Cluster, all []Demo, patience time.Duration) error {
	for _, o := range d.Objects {
		if o.GetKind() == "Namespace" && o.GetAnnotations()[aloneAnnotation] == "true" {
			return cluster.Empty(ctx, patience, Namespaces(all)...)
		}
	}
	return nil
}

// Run applies the demo and returns its output. It waits until the output matches the README, and otherwise until
// nothing is new for the time of patience. The error is then a Failure. The demo's objects remain, but
// not its pods if a GPU was attached or a node labelled for them.
func (d Demo) Run(ctx context.Context, cluster *kube.Cluster, driver string, patience time.Duration) (got []string,
	err error) {
	node, err := d.label(ctx, cluster)
	defer func() {
		err = errors.Join(err, node.remove(context.WithoutCancel(ctx), cluster, patience, d))
	}()
	if err != nil {
		return nil, err
	}
	first, err := d.apply(ctx, cluster, patience)
	if err != nil {
		return nil, err
	}
	attached, err := d.attach(ctx, cluster, patience)
	defer func() {
		err = errors.Join(err, attached.detach(context.WithoutCancel(ctx), cluster, patience, d.Namespaces()...))
	}()
	if err != nil {
		return attached.lines, err
	}
	sick, err := d.breakGPU(ctx, cluster, patience)
	if err != nil {
		return nil, err
	}
	first = append(first, attached.lines...)
	got, err = d.settle(ctx, patience, func(ctx context.Context) (sight, error) {
		return d.look(ctx, cluster, driver, first, sick)
	})
	if err := sick.clear(ctx, cluster, patience); err != nil {
		return got, err
	}
	return got, err
}

// firstAnnotation on a demo's pod or StatefulSet means that the following objects need it to run.
const firstAnnotation = "demo.gpu-dra-driver/first"

// refusedAnnotation on an object of a demo means that the API server must reject it.
const refusedAnnotation = "demo.gpu-dra-driver/refused"

// apply creates the demo's objects. refused contains the messages of the expected rejections.
func (d Demo) apply(ctx context.Context, cluster *kube.Cluster, patience time.Duration) (refused []string, err error) {
	for _, o := range d.Objects {
		answer, err := put(ctx, cluster, patience, o)
		if err != nil {
			return nil, err
		}
		if o.GetAnnotations()[refusedAnnotation] == "true" {
			var status apierrors.APIStatus
			if !errors.As(answer, &status) {
				return nil, fmt.Errorf("%s %s: want it refused, but it was created", o.GetKind(), o.GetName())
			}
			refused = append(refused, indent("refused: ", fmt.Sprintf("%s %s: %s", o.GetKind(), o.GetName(),
				status.Status().Message))...)
			continue
		}
		if answer != nil {
			return nil, answer
		}
		if o.GetAnnotations()[firstAnnotation] == "true" {
			pod := client.ObjectKeyFromObject(o)
			if o.GetKind() == "StatefulSet" {
				pod.Name += "-0"
			}
			if _, err := cluster.WaitPod(ctx, patience, pod, "ready", kube.Ready); err != nil {
				return nil, err
			}
		}
	}
	return refused, nil
}

// put applies an object until the API server answers, and returns the answer: nil, or why it refuses the object. A
// webhook that is too slow to answer is no answer.
func put(ctx context.Context, cluster *kube.Cluster, patience time.Duration, o *unstructured.Unstructured) (
	answer, err error) {
	what := fmt.Sprintf("an answer about %s %s", o.GetKind(), o.GetName())
	err = kube.Until(ctx, patience, what, func(ctx context.Context) (bool, string, error) {
		answer = cluster.Apply(ctx, o)
		if answer == nil || kube.Refuses(answer) {
			return true, "", nil
		}
		return false, "", answer
	})
	return answer, err
}

// look returns the current state of the demo.
func (d Demo) look(ctx context.Context, cluster *kube.Cluster, driver string, first []string, sick broken) (sight,
	error) {
	now := sight{lines: append([]string{"asked:  " + d.Asked}, first...)}
	if sick.device != "" {
		now.lines = append(now.lines, fmt.Sprintf("broken: %s on %s, by simctl %s", sick.device, sick.node,
			sick.command))
	}
	var err error
	if now.state, err = cluster.State(ctx, d.Namespaces()...); err != nil {
		return sight{}, err
	}
	devices, err := publishedDevices(ctx, cluster)
	if err != nil {
		return sight{}, err
	}
	for _, namespace := range slices.Sorted(slices.Values(d.Namespaces())) {
		pods, err := cluster.Pods(ctx, namespace)
		if err != nil {
			return sight{}, err
		}
		now.pods = append(now.pods, pods...)
		for i := range pods {
			more, err := reportPod(ctx, cluster, driver, devices, &pods[i])
			if err != nil {
				return sight{}, err
			}
			now.lines = append(now.lines, more...)
		}
		more, err := sick.moved(ctx, cluster, pods)
		if err != nil {
			return sight{}, err
		}
		now.lines = append(now.lines, more...)
	}
	return now, nil
}

func indent(label, text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, label+strings.TrimRight(line, "\n"))
	}
	return lines
}

// Select returns the demos with these names, or all of them without names.
func Select(all []Demo, names []string) ([]Demo, error) {
	if len(names) == 0 {
		return all, nil
	}
	var selected []Demo
	for _, name := range names {
		i := slices.IndexFunc(all, func(d Demo) bool { return d.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("select demos: there is none called %s", name)
		}
		selected = append(selected, all[i])
	}
	return selected, nil
}

// Namespaces returns the namespaces of all demos.
func Namespaces(all []Demo) []string {
	var names []string
	for _, d := range all {
		names = append(names, d.Namespaces()...)
	}
	return names
}
