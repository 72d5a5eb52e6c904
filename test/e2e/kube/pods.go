// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pods returns the pods of a namespace sorted by name.
func (c *Cluster) Pods(ctx context.Context, namespace string, options ...client.ListOption) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.List(ctx, &list, append(options, client.InNamespace(namespace))...); err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", namespace, err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// Started reports whether the pod's first container runs or has run, and thus has a log.
func Started(pod *corev1.Pod) bool {
	if len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	state := pod.Status.ContainerStatuses[0].State
	return state.Running != nil || state.Terminated != nil
}

// Ready reports whether the pod's containers run and its readiness probes succeed.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// WaitPod waits until the pod is as wanted, and returns it. Patience: see Until.
func (c *Cluster) WaitPod(ctx context.Context, patience time.Duration, key client.ObjectKey, what string,
	wanted func(*corev1.Pod) bool) (*corev1.Pod, error) {
	var pod corev1.Pod
	err := Until(ctx, patience, fmt.Sprintf("pod %s to be %s", key, what), func(ctx context.Context) (bool, string,
		error) {
		if err := c.Get(ctx, key, &pod); err != nil {
			return false, "", err
		}
		return wanted(&pod), PodState(&pod), nil
	})
	return &pod, err
}

// Log returns the output of the pod's only container so far.
func (c *Cluster) Log(ctx context.Context, pod client.ObjectKey) (string, error) {
	return c.ContainerLog(ctx, pod, "")
}

// ContainerLog returns the output of a container of the pod so far.
func (c *Cluster) ContainerLog(ctx context.Context, pod client.ObjectKey, container string) (string, error) {
	stream, err := c.set.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
		&corev1.PodLogOptions{Container: container}).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of %s: %w", pod, err)
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	if err != nil {
		return "", fmt.Errorf("read the log of %s: %w", pod, err)
	}
	return string(text), nil
}

// Exec runs a program in the pod's first container and returns its stdout followed by its stderr.
func (c *Cluster) Exec(ctx context.Context, pod client.ObjectKey, command ...string) (string, error) {
	request := c.set.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource(
		"exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return "", fmt.Errorf("run %q in %s: %w", command, pod, err)
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	output := stdout.String() + stderr.String()
	if err != nil {
		return output, fmt.Errorf("run %q in %s: %w: %s", command, pod, err, output)
	}
	return output, nil
}

// SimulatedPlugin is the program of the plugin with simulated GPUs, in its container.
const SimulatedPlugin = "/usr/bin/dra-kubelet-plugin-sim"

// Simctl runs a command of simctl in a pod of the plugin: it is about the simulated GPUs of the pod's node.
func (c *Cluster) Simctl(ctx context.Context, plugin client.ObjectKey, args ...string) (string, error) {
	return c.Exec(ctx, plugin, append([]string{SimulatedPlugin, "simctl"}, args...)...)
}

// HTTP sends a GET to a pod through the API server's proxy and returns the response body. Any status but success is an
// error.
func (c *Cluster) HTTP(ctx context.Context, pod client.ObjectKey, port int, path string) (string, error) {
	body, err := c.set.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, strconv.Itoa(port), path, nil).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("ask %s for %s: %w: %s", pod, path, err, body)
	}
	return string(body), nil
}

// Events returns the messages of an object's events, oldest first.
func (c *Cluster) Events(ctx context.Context, object client.ObjectKey) ([]string, error) {
	var list corev1.EventList
	if err := c.List(ctx, &list, client.InNamespace(object.Namespace),
		client.MatchingFields{"involvedObject.name": object.Name}); err != nil {
		return nil, fmt.Errorf("list events of %s: %w", object, err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	var messages []string
	for _, e := range list.Items {
		messages = append(messages, e.Reason+": "+e.Message)
	}
	return messages, nil
}

// eventTime returns when the event was seen last. Libraries set different fields.
func eventTime(e corev1.Event) time.Time {
	switch {
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// TryAgain makes the kubelet sync the pod now, by a change of its annotations. After a failed sync the kubelet itself
// waits 60 to 90 s, with its default syncFrequency.
func (c *Cluster) TryAgain(ctx context.Context, pod client.ObjectKey) error {
	patch := fmt.Sprintf(`{"metadata": {"annotations": {"example.com/try": "%d"}}}`, time.Now().UnixNano())
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	return c.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)))
}
