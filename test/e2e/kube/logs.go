// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// driverLabels selects the pods of the chart in any namespace.
var driverLabels = client.MatchingLabels{"app.kubernetes.io/name": "gpu-dra-driver"}

// LogsVariable is the environment variable with the folder for the logs of failed tests. Without it they are in the
// folder e2e-logs of the system's folder for temporary files.
const LogsVariable = "E2E_LOGS"

// keepTimeout is when a cluster that does not answer is left alone. Its machines' logs are kept all the same.
const keepTimeout = 2 * time.Minute

// Test is what KeepLogsOf needs of a test.
type Test interface {
	Context() context.Context
	Failed() bool
	Helper()
	Logf(format string, args ...any)
	Name() string
}

// KeepLogsOf keeps the logs of a test if it has failed.
func (c *Cluster) KeepLogsOf(t Test) {
	t.Helper()
	if !t.Failed() {
		return
	}
	dir, err := c.KeepLogs(t.Context(), t.Name())
	t.Logf("the logs are in %s", dir)
	if err != nil {
		t.Logf("some are missing: %v", err)
	}
}

// KeepLogs writes what a failed test leaves into a folder of its name, and returns the folder: the logs of the driver's
// containers and of the containers before them, the pods, claims, slices and events of the cluster, and every log of
// its machines if it is one of test/cluster. An error names what is missing.
func (c *Cluster) KeepLogs(ctx context.Context, test string) (string, error) {
	dir, err := filepath.Abs(filepath.Join(cmp.Or(os.Getenv(LogsVariable), filepath.Join(os.TempDir(), "e2e-logs")),
		fileName.ReplaceAllString(test, "_")))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	found, failed := CopyMachineLogs(filepath.Dir(c.kubeconfig), dir)
	if !found {
		failed = errors.Join(failed, c.keepPodLogs(ctx, dir))
	}
	return dir, errors.Join(failed, c.keepObjects(ctx, dir))
}

// fileName matches what is not part of a file's name.
var fileName = regexp.MustCompile(`[^\w.,-]+`)

// keepPodLogs writes the logs of the driver's pods.
func (c *Cluster) keepPodLogs(ctx context.Context, dir string) error {
	pods, err := c.Pods(ctx, "", driverLabels)
	if err != nil {
		return err
	}
	var failed []error
	for i := range pods {
		pod := &pods[i]
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			file := filepath.Join(dir, fmt.Sprintf("%s_%s_%s", cmp.Or(pod.Spec.NodeName, "no-node"), pod.Name, s.Name))
			if s.State.Waiting == nil {
				failed = append(failed, c.keepLog(ctx, pod, &corev1.PodLogOptions{Container: s.Name}, file+".log"))
			}
			if s.RestartCount > 0 {
				failed = append(failed, c.keepLog(ctx, pod, &corev1.PodLogOptions{Container: s.Name, Previous: true},
					file+".previous.log"))
			}
		}
	}
	return errors.Join(failed...)
}

func (c *Cluster) keepLog(ctx context.Context, pod *corev1.Pod, options *corev1.PodLogOptions, file string) error {
	stream, err := c.set.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("read the log for %s: %w", filepath.Base(file), err)
	}
	defer stream.Close()
	return writeFrom(stream, file)
}

// keepObjects writes the objects that tell what happened.
func (c *Cluster) keepObjects(ctx context.Context, dir string) error {
	var failed []error
	for name, list := range map[string]client.ObjectList{"pods": &corev1.PodList{}, "events": &corev1.EventList{},
		"claims": &resourceapi.ResourceClaimList{}, "slices": &resourceapi.ResourceSliceList{}} {
		if err := c.List(ctx, list); err != nil {
			failed = append(failed, fmt.Errorf("list %s: %w", name, err))
			continue
		}
		text, err := yaml.Marshal(list)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".yaml"), text, 0o644)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// CopyMachineLogs copies every log of the machines of a cluster of test/cluster, whose kubeconfig is in from, and those
// of the driver's containers on them: to NODE_COMPONENT.log and NODE_POD_CONTAINER_RESTARTS.log. It needs no API
// server. It reports whether there are any; those of another cluster are elsewhere.
func CopyMachineLogs(from, to string) (found bool, failed error) {
	for pattern, parts := range map[string][]int{
		"*/log/*.log": {0, 2},
		"*/disk/var/log/pods/gpu-dra-driver_*/*/*.log": {0, 5, 6, 7},
	} {
		logs, err := filepath.Glob(filepath.Join(from, pattern))
		failed = errors.Join(failed, err)
		for _, log := range logs {
			path := strings.Split(strings.TrimPrefix(log, from+"/"), "/")
			var name []string
			for _, i := range parts {
				name = append(name, strings.TrimPrefix(path[i], "gpu-dra-driver_"))
			}
			found = true
			failed = errors.Join(failed, copyEnd(log, filepath.Join(to, strings.Join(name, "_"))))
		}
	}
	return found, failed
}

// mostOfLog is how much of the end of a machine's log is kept.
const mostOfLog = 16 << 20

func copyEnd(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if info, err := in.Stat(); err == nil && info.Size() > mostOfLog {
		if _, err := in.Seek(-mostOfLog, io.SeekEnd); err != nil {
			return err
		}
	}
	return writeFrom(in, to)
}

func writeFrom(r io.Reader, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// Ends returns the last lines of each log of the driver's containers in the folder.
func Ends(dir string, lines int) string {
	var b strings.Builder
	logs, _ := filepath.Glob(filepath.Join(dir, "*_*_*.log"))
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil || len(text) == 0 {
			continue
		}
		all := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "--- %s\n", filepath.Base(log))
		for _, line := range all[max(0, len(all)-lines):] {
			fmt.Fprintln(&b, line[:min(len(line), mostOfLine)])
		}
	}
	return b.String()
}

// mostOfLine is how much of a line Ends returns.
const mostOfLine = 300
