// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/nodetemplate"
	"github.com/gpudra/gpu-dra-driver/internal/why"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

type fitsOptions struct {
	file    string
	empty   bool
	profile string
	driver  string
}

func fitsCommand(p *plugin) *cobra.Command {
	var f fitsOptions
	var o output
	cmd := &cobra.Command{
		Use:   "fits -f FILE",
		Short: "Tell whether a pod or ResourceClaim would get devices now, and on which nodes.",
		Long: "Tell whether the pods, ResourceClaims and ResourceClaimTemplates of a file would get devices now, and " +
			"on which nodes. Nothing is created. A workload such as a Deployment counts as one of its pods. Each pod " +
			"is asked about alone. The exit code is 1 if something does not fit.",
		Example: "  kubectl gpu fits -f pod.yaml\n  kubectl gpu fits -f pod.yaml --profile dgx-h100",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return addNode(&cluster.Snapshot{}, f) }, // is there a profile?
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.fits(cmd.Context(), f, o) },
	}
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "The file; - is the standard input.")
	cmd.Flags().BoolVar(&f.empty, "empty", false, "As if the cluster had no other pods and claims.")
	cmd.Flags().StringVar(&f.profile, "profile", "", "As if the cluster had one more node, with the GPUs of this "+
		"profile: "+strings.Join(nodetemplate.Profiles(), ", ")+".")
	cmd.Flags().StringVar(&f.driver, "driver", "gpu.nvidia.com", "The DRA driver of the node of --profile.")
	utilruntime.Must(cmd.MarkFlagRequired("filename")) // the flag exists
	completeFlag(cmd, "profile", fixed(nodetemplate.Profiles()))
	o.addFlags(p, cmd)
	return cmd
}

func (p *plugin) fits(ctx context.Context, f fitsOptions, o output) error {
	m, err := p.manifest(f.file, p.namespace)
	if err != nil {
		return err
	}
	s := p.readAll(ctx, "", m)
	readNamespaces(ctx, p.client, &m)
	if f.empty {
		s = why.Empty(s)
	}
	if err := addNode(s, f); err != nil {
		return err
	}
	reports := why.Fit(ctx, s, m)
	err = printEach(p, o, "ReportList", reports, (*why.Answer).Text)
	for _, name := range m.Others {
		fmt.Fprintf(p.ErrOut, "%s is not understood: what its pods would get is not known\n", name)
		err = cmp.Or(err, errors.New("not everything was understood"))
	}
	for _, r := range reports {
		if r.Outcome != why.Fits {
			return errors.Join(err, errors.New("not everything fits"))
		}
	}
	return err
}

// readNamespaces adds the namespaces that decide about adminAccess in the manifest, if they can be read. A namespace of
// the manifest keeps labels that it does not have there.
func readNamespaces(ctx context.Context, client kubernetes.Interface, m *why.Manifest) {
	for _, name := range m.AdminNamespaces() {
		planned := m.Namespaces[name]
		if planned == nil || planned.Labels[resourceapi.DRAAdminNamespaceLabelKey] == "" {
			if of, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err == nil {
				m.Namespaces[name] = of
			}
		}
	}
}

// addNode adds the node of --profile, if that is set.
func addNode(s *cluster.Snapshot, f fitsOptions) error {
	if f.profile == "" {
		return nil
	}
	name := "new-" + f.profile
	made, err := nodetemplate.FromProfile(f.profile, nodeconfig.Config{},
		nodetemplate.Target{Driver: f.driver, Name: name})
	if err != nil {
		return err
	}
	s.Slices = append(s.Slices, made.Slices...)
	s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}}})
	return nil
}

func (p *plugin) manifest(file, namespace string) (why.Manifest, error) {
	in := p.In
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return why.Manifest{}, err
		}
		defer opened.Close()
		in = opened
	}
	m := why.Manifest{Namespaces: map[string]*corev1.Namespace{}}
	reader := yaml.NewYAMLReader(bufio.NewReader(in))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = plainError(add(&m, document, namespace))
		}
		if err != nil {
			return m, fmt.Errorf("%s: %w", file, err)
		}
	}
	if len(m.Pods)+len(m.Claims)+len(m.Templates) == 0 {
		return m, fmt.Errorf("%s has no Pod, ResourceClaim, ResourceClaimTemplate or object with a pod template", file)
	}
	return m, nil
}

// plainError returns the error of a wrong type without the names of this program's types.
func plainError(err error) error {
	if path, text, ok := api.WrongType(err); ok {
		return fmt.Errorf("%s: %s", cmp.Or(path, "a document"), text)
	}
	return err
}

// podSpecs are where objects have pod specs: those with a pod template, such as a Deployment, and with one of a Job.
var podSpecs = [][]string{{"spec", "template", "spec"}, {"spec", "jobTemplate", "spec", "template", "spec"}}

// add adds the objects of a document. Of other kinds it notes those that name GPUs and are not Kubernetes' own.
func add(m *why.Manifest, document []byte, namespace string) (err error) {
	var kind metav1.PartialObjectMetadata
	if err := sigsyaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	of := func(object metav1.Object) {
		err = decode(document, kind, object)
		object.SetNamespace(cmp.Or(object.GetNamespace(), namespace))
	}
	group, ofDRA := kind.GroupVersionKind().Group, kind.GroupVersionKind().Group == resourceapi.GroupName
	switch {
	case kind.Kind == "Pod" && kind.APIVersion == "v1":
		pod := &corev1.Pod{}
		if of(pod); err == nil && len(pod.Spec.Containers) == 0 {
			err = fmt.Errorf("pod %s has no containers", pod.Name)
		}
		m.Pods = append(m.Pods, pod)
	case kind.Kind == "Namespace" && kind.APIVersion == "v1":
		m.Namespaces[kind.Name] = &corev1.Namespace{ObjectMeta: kind.ObjectMeta}
	case kind.Kind == "ResourceClaim" && ofDRA:
		claim := &resourceapi.ResourceClaim{}
		of(claim)
		m.Claims = append(m.Claims, claim)
	case kind.Kind == "ResourceClaimTemplate" && ofDRA:
		template := &resourceapi.ResourceClaimTemplate{}
		of(template)
		m.Templates = append(m.Templates, template)
	case kind.Kind == "List" && kind.APIVersion == "v1":
		var list corev1.List
		err = sigsyaml.Unmarshal(document, &list)
		for _, item := range list.Items {
			err = cmp.Or(err, add(m, item.Raw, namespace))
		}
	default:
		before := len(m.Pods)
		// An error means that it is of another kind, and so does a template without containers.
		var object map[string]any
		_ = sigsyaml.Unmarshal(document, &object)
		for _, path := range podSpecs {
			spec, _, _ := unstructured.NestedMap(object, path...)
			pod := &corev1.Pod{}
			pod.Namespace, pod.Name = cmp.Or(kind.Namespace, namespace), kind.Name
			err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod.Spec)
			if err == nil && len(pod.Spec.Containers) > 0 {
				m.Pods = append(m.Pods, pod)
			}
		}
		if len(m.Pods) == before && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") &&
			bytes.Contains(bytes.ToLower(document), []byte("gpu")) {
			m.Others = append(m.Others, kind.Kind+" "+kind.Name)
		}
	}
	return err
}

// ofRequest matches a field that stood in a request before v1.
var ofRequest = regexp.MustCompile(`requests\[\d+\]\.(deviceClassName|selectors|count|allocationMode|capacity)"`)

// decode decodes a pod, a claim or a template. Before v1, and before v1beta2, claims were different.
func decode(document []byte, kind metav1.PartialObjectMetadata, into any) error {
	if version := kind.GroupVersionKind().Version; version != "v1" && version != "v1beta2" {
		return fmt.Errorf("%s %s is not supported; write apiVersion: %s", kind.APIVersion, kind.Kind,
			resourceapi.SchemeGroupVersion)
	}
	text, err := sigsyaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	unknown, err := kjson.UnmarshalStrict(text, into)
	if err = errors.Join(append(unknown, err)...); err != nil && ofRequest.MatchString(err.Error()) {
		err = fmt.Errorf("%w\nin %s, this stands below exactly", err, kind.APIVersion)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, kind.Name, err)
	}
	return nil
}
