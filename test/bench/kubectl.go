// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

const (
	kubectlProgram = "_output/bin/kubectl-gpu"
	kubectlRuns    = 9
	// partitionedNodes have as many devices as 128,000 with all partitions.
	partitionedNodes = 613
	waitingPods      = 1000
	// explaining is how long the controller is watched while it explains why claims wait, once a minute.
	explaining = 4 * time.Minute
	// askedFor is the name of a claim and of a template for nine devices of a node.
	askedFor = "nine"
	largest  = "mig-7g.80gb.nvidia.com" // class of partitions
)

// measureKubectl runs kubectl-gpu as a user does, with many nodes of eight GPUs of which claims hold half. It asks why
// a claim for nine GPUs of a node waits. Where GPUs are whole, many pods wait for such claims then, and the controller
// says why.
func measureKubectl(ctx context.Context, b *bench) error {
	whole := gpu.SharingMode{Sharing: gpu.Exclusive, Partitions: gpu.PartitionsNone}
	err := b.withFleet(ctx, manyNodes, whole, driver, func(int) error {
		why, ls, err := b.whyAndLs(ctx)
		if err != nil {
			return err
		}
		b.results["kubectl"] = []float64{why.all.p50() / 1000, ls.all.p50() / 1000}
		b.results["kubectlrss"] = []float64{why.rss, ls.rss}
		return b.explainWaiting(ctx)
	})
	if err != nil {
		return err
	}
	return b.withFleet(ctx, partitionedNodes, gpu.SharingMode{}, largest, func(devices int) error {
		why, ls, err := b.whyAndLs(ctx)
		if err != nil {
			return err
		}
		b.results["kubectlparts"] = []float64{why.read.p50() / 1000, why.rest.p50() / 1000}
		b.results["kubectlpartsls"] = []float64{ls.all.p50() / 1000}
		b.results["kubectlpartsrss"] = []float64{why.rss, ls.rss}
		b.results["kubectldevices"] = []float64{float64(devices)}
		return nil
	})
}

// whyAndLs runs both commands.
func (b *bench) whyAndLs(ctx context.Context) (why, ls runs, err error) {
	if why, err = b.kubectl(ctx, "why", "claim/"+askedFor); err == nil {
		ls, err = b.kubectl(ctx, "ls", "--all-namespaces")
	}
	return why, ls, err
}

// withFleet calls do with the number of devices of a fleet of that many nodes with eight GPUs in that use. Claims of
// the class hold half of its devices, and another one waits for nine on a node.
func (b *bench) withFleet(ctx context.Context, nodes int, use gpu.SharingMode, class string,
	do func(devices int) error) (failure error) {
	f, err := b.startFleet(ctx, nodes, use)
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		failure = errors.Join(failure, b.deleteClaims(ctx), f.Stop(ctx))
	}()
	results, err := b.half(ctx, class)
	if err != nil {
		return err
	}
	if err := atOnce(len(results), 32, func(i int) error {
		_, err := b.allocate(ctx, resourceapi.DeviceAllocationResult{Results: results[i : i+1]})
		return err
	}); err != nil {
		return err
	}
	if _, err := b.claims.Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: askedFor},
		Spec: nine(class)}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return do(f.Size().Devices)
}

// nine asks for nine devices of the class, more than a node has.
func nine(class string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: 9}}}}}
}

// half returns a random half of the fleet's whole GPUs, or of the partitions of the class that are as large.
func (b *bench) half(ctx context.Context, class string) ([]resourceapi.DeviceRequestAllocationResult, error) {
	slices, err := b.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(1, 0))
	var all []resourceapi.DeviceRequestAllocationResult
	for _, slice := range slices.Items {
		if !strings.HasPrefix(ptr.Deref(slice.Spec.NodeName, ""), fleetPrefix) {
			continue
		}
		for _, d := range slice.Spec.Devices {
			is := ptr.Deref(d.Attributes["type"].StringValue, "")
			if profile := ptr.Deref(d.Attributes["profile"].StringValue, ""); profile != "" {
				is = "mig-" + profile + ".nvidia.com"
			}
			if (is == class || is == "gpu" && class == driver) && r.IntN(2) == 0 {
				all = append(all, resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver,
					Pool: slice.Spec.Pool.Name, Device: d.Name})
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the fleet has no device of class " + class)
	}
	return all, nil
}

// runs are runs of kubectl-gpu.
type runs struct {
	all  samples
	read samples // until it has read the cluster, or all if it has shown no progress
	rest samples // from then on
	rss  float64 // MiB, the most of a run
}

// kubectl runs kubectl-gpu several times, with a terminal for its progress.
func (b *bench) kubectl(ctx context.Context, args ...string) (runs, error) {
	var r runs
	args = append([]string{"--kubeconfig", b.kubeconfig, "--namespace", b.ns}, args...)
	for range kubectlRuns {
		all, read, rss, err := runOnTerminal(ctx, args)
		if err != nil {
			return r, fmt.Errorf("kubectl gpu %s: %w", strings.Join(args, " "), err)
		}
		r.all, r.read, r.rest = append(r.all, all), append(r.read, read), append(r.rest, all-read)
		r.rss = max(r.rss, rss)
	}
	return r, nil
}

// runOnTerminal runs kubectl-gpu once. read is the time until it removes the progress from the terminal.
func runOnTerminal(ctx context.Context, args []string) (all, read time.Duration, rss float64, err error) {
	terminal, side, err := openTerminal()
	if err != nil {
		return 0, 0, 0, err
	}
	defer terminal.Close()
	var out, shown bytes.Buffer
	cmd := exec.CommandContext(ctx, kubectlProgram, args...)
	cmd.Stdout, cmd.Stderr = &out, side
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, 0, errors.Join(err, side.Close())
	}
	_ = side.Close() // the program has it
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buffer := make([]byte, 1024); ; {
			n, err := terminal.Read(buffer)
			if bytes.Contains(buffer[:n], []byte("\x1b[K")) && read == 0 {
				read = time.Since(begin)
			}
			shown.Write(buffer[:n])
			if err != nil {
				return // the program has ended
			}
		}
	}()
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { rss = peak(process{pid: cmd.Process.Pid}, ended) })
	err = cmd.Wait()
	all = time.Since(begin)
	close(ended)
	watching.Wait()
	<-done
	if err != nil {
		return 0, 0, 0, fmt.Errorf("%w: %s", err, shown.String())
	}
	if out.Len() == 0 {
		return 0, 0, 0, errors.New("no output")
	}
	if read == 0 {
		read = all
	}
	return all, read, rss, nil
}

// peak returns the largest RSS of the process in MiB, up to the last moments before it has ended. What wait4(2) returns
// is at least the RSS of the process that has started it.
func peak(p process, ended <-chan struct{}) (most float64) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if m, err := p.memory(); err == nil && executable(p.pid) == filepath.Base(kubectlProgram) {
			most = max(most, m.peak)
		}
		select {
		case <-ended:
			return most
		case <-tick.C:
		}
	}
}

// openTerminal opens a pseudoterminal, see pts(4).
func openTerminal() (terminal, side *os.File, err error) {
	if terminal, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	err = unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0)
	number, numberErr := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, numberErr); err == nil {
		side, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, terminal.Close())
	}
	return terminal, side, nil
}

// explainWaiting lets many pods wait, and measures the processor time of the controllers before and then.
func (b *bench) explainWaiting(ctx context.Context) (failure error) {
	if _, err := b.client.ResourceV1().ResourceClaimTemplates(b.ns).Create(ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: askedFor},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: nine(driver)}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	idle, err := b.controllersUse(ctx, time.Minute)
	if err != nil {
		return err
	}
	pods := b.client.CoreV1().Pods(b.ns)
	defer func() {
		ctx := context.WithoutCancel(ctx)
		failure = errors.Join(failure, pods.DeleteCollection(ctx, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To(int64(0))}, metav1.ListOptions{}))
	}()
	if err := atOnce(waitingPods, 32, func(int) error {
		pod := withClaim(b.pod(), askedFor)
		pod.Spec.NodeSelector = nil
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := kube.Until(ctx, 20*time.Minute, "the scheduler to refuse all pods", func(ctx context.Context) (bool,
		string, error) {
		all, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		refused := 0
		for _, pod := range all.Items {
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
					refused++
				}
			}
		}
		return refused == waitingPods, fmt.Sprintf("it has refused %d", refused), nil
	}); err != nil {
		return err
	}
	if err := sleep(ctx, time.Minute); err != nil { // until all have waited long enough
		return err
	}
	busy, err := b.controllersUse(ctx, explaining)
	if err != nil {
		return err
	}
	b.results["explaining"] = []float64{busy - idle}
	b.results["explainingidle"] = []float64{idle, busy}
	return nil
}

// controllersUse returns how much of a processor all controllers use, in percent.
func (b *bench) controllersUse(ctx context.Context, during time.Duration) (float64, error) {
	processes, err := findProcesses(ctx, b.client, controllerLabel, controllerProgram)
	if err != nil {
		return 0, err
	}
	used := func() (total time.Duration, err error) {
		for _, p := range processes {
			one, err := p.cpu()
			if err != nil {
				return 0, err
			}
			total += one
		}
		return total, nil
	}
	before, err := used()
	if err != nil {
		return 0, err
	}
	if err := sleep(ctx, during); err != nil {
		return 0, err
	}
	after, err := used()
	return 100 * float64(after-before) / float64(during), err
}
