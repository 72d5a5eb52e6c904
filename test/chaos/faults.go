// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	sim "github.com/gpudra/gpu-dra-driver/simulator/node"
)

// fault is a kind of fault. Its function breaks something, waits for the time that the plan says, and mends it.
type fault struct {
	kind string
	do   func(ctx context.Context, l *lab, f faultPlan) error
}

var faults = []fault{
	{"kill the plugin", kill("pkill -9 -f '[d]ra-kubelet-plugin-sim --registry-dir'")},
	{"kill the plugin at a step", crashAtStep},
	{"kill the MPS supervisor", kill("pkill -9 -x mps-supervisor")},
	{"kill the controller", kill("pkill -9 -x dra-controller")},
	{"restart the kubelet", restart("kubelet")},
	{"restart containerd", restart("containerd")},
	{"cut the node's power", cutPower},
	{"stop the API server", stop("apiserver")},
	{"stop etcd", stop("etcd")},
	{"cut the node's network", cutNetwork},
	{"fill the node's /run", fillRun},
	{"fail a call of NVML", failCall},
	{"take a GPU from the bus", unplug},
	{"report an XID", xid},
	{"upgrade the chart and roll it back", upgrade},
}

// onNode runs a script on the fault's node.
func (l *lab) onNode(ctx context.Context, f faultPlan, script string) error {
	_, err := l.control(ctx, "exec", f.node, "--", "sh", "-c", script)
	return err
}

// kill ends programs of the node. It is no error if none runs, because of a fault before.
func kill(command string) func(context.Context, *lab, faultPlan) error {
	return func(ctx context.Context, l *lab, f faultPlan) error { return l.onNode(ctx, f, command+"; true") }
}

func restart(program string) func(context.Context, *lab, faultPlan) error {
	return func(ctx context.Context, l *lab, f faultPlan) error {
		_, err := l.control(ctx, "restart", f.node+"/"+program)
		return err
	}
}

func stop(program string) func(context.Context, *lab, faultPlan) error {
	return func(ctx context.Context, l *lab, f faultPlan) error {
		_, err := l.control(ctx, "stop", program)
		pause(ctx, f.hold)
		_, startErr := l.control(context.WithoutCancel(ctx), "start", program)
		return errors.Join(err, startErr)
	}
}

// cutPower crashes the node and boots it. Its GPUs lose what they lose at a boot.
func cutPower(ctx context.Context, l *lab, f faultPlan) error {
	if _, err := l.control(ctx, "crash", f.node); err != nil {
		return err
	}
	pause(ctx, f.hold)
	_, err := l.control(context.WithoutCancel(ctx), "start", f.node)
	return err
}

func cutNetwork(ctx context.Context, l *lab, f faultPlan) error {
	err := l.onNode(ctx, f, `nft 'add table inet chaos
add chain inet chaos in { type filter hook input priority -300; }
add chain inet chaos out { type filter hook output priority -300; }
add rule inet chaos in iifname eth0 drop
add rule inet chaos out oifname eth0 drop'`)
	pause(ctx, f.hold)
	return errors.Join(err, l.onNode(context.WithoutCancel(ctx), f, "nft delete table inet chaos"))
}

// fillRun leaves a few pages of the node's /run, which has the CDI specs, the state of containerd, and sockets.
func fillRun(ctx context.Context, l *lab, f faultPlan) error {
	// What is written between the two commands may be more than that: then the mount refuses, and all is done again.
	err := l.onNode(ctx, f, `for _ in $(seq 100); do
	used=$(df -k --output=used /run | tail -n 1); mount -o remount,size=$((used + 8))k /run && exit
done; exit 1`)
	pause(ctx, f.hold)
	return errors.Join(err, l.onNode(context.WithoutCancel(ctx), f, "mount -o remount,size=50% /run"))
}

// failing are calls of NVML that the driver makes when it prepares and releases claims, and publishes.
var failing = []string{"CreateGpuInstanceWithPlacement", "GpuInstanceCreateComputeInstance", "GpuInstanceDestroy",
	"ComputeInstanceDestroy", "SetComputeMode", "SetMigMode", "GetMemoryInfo", "GetMinorNumber", "GetMigMode",
	"GetUUID"}

// failCall lets the n-th next call of one kind fail, on every GPU of the node.
func failCall(ctx context.Context, l *lab, f faultPlan) error {
	machine, err := l.machine(f.node)
	if err != nil {
		return err
	}
	call := failing[int(f.pick)%len(failing)]
	l.say("%s: the next call but %d of %s fails", f.node, f.pick%3, call)
	v, err := machine.View()
	if err != nil {
		return err
	}
	for _, g := range v.OnBus() { // a virtual machine may take or return one meanwhile
		err = errors.Join(err, machine.Inject(g.Name, call,
			sim.Fault{Error: "ERROR_UNKNOWN", After: int(f.pick % 3), Times: 1}))
	}
	pause(ctx, 2*f.hold)
	for _, g := range v.OnBus() {
		err = errors.Join(err, machine.Heal(g.Name))
	}
	return err
}

// crashAtStep kills the plugin when it reaches the n-th step of preparing or releasing the next claim.
func crashAtStep(ctx context.Context, l *lab, f faultPlan) error {
	machine, err := l.machine(f.node)
	if err != nil {
		return err
	}
	verbs := []sim.Verb{sim.Prepare, sim.Unprepare}
	order := sim.Crash{At: 1 + int(f.pick%7), After: f.pick&64 > 0, Verb: verbs[f.pick>>8&1]}
	l.say("%s: %s", f.node, order)
	err = machine.OrderCrash(order)
	pause(ctx, 2*f.hold)
	return errors.Join(err, machine.CancelCrash())
}

// gpu waits until NVIDIA's driver has a GPU of the node, because virtual machines may have all of them, and returns it.
func (l *lab) gpu(ctx context.Context, f faultPlan) (*sim.Node, sim.GPU, error) {
	machine, err := l.machine(f.node)
	if err != nil {
		return nil, sim.GPU{}, err
	}
	for {
		v, err := machine.View()
		if err != nil {
			return nil, sim.GPU{}, err
		}
		if len(v.GPUs) > 0 {
			gpu := v.GPUs[int(f.pick)%len(v.GPUs)]
			l.say("%s: it is %s", f.node, gpu.Name)
			l.sick(f.node, gpu.Name)
			return machine, gpu, nil
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return nil, sim.GPU{}, ctx.Err()
		}
	}
}

func unplug(ctx context.Context, l *lab, f faultPlan) error {
	machine, gpu, err := l.gpu(ctx, f)
	if err != nil {
		return err
	}
	err = machine.Unplug(gpu.Name)
	pause(ctx, 2*f.hold)
	return errors.Join(err, machine.Plug(gpu.Name))
}

// xids need a restart of the program, a reset of the GPU, and an eviction of its pods.
var xids = []uint64{31, 48, 79}

// xid reports an XID of a GPU. Nobody hears of it if a virtual machine has just taken the GPU.
func xid(ctx context.Context, l *lab, f faultPlan) error {
	machine, gpu, err := l.gpu(ctx, f)
	if err != nil {
		return err
	}
	return machine.Emit(sim.Event{GPU: gpu.UUID, Type: sim.EventXID, XID: xids[int(f.pick>>8)%len(xids)]})
}

// upgrade replaces every pod of the driver but those of the MPS supervisor, twice.
func upgrade(ctx context.Context, l *lab, f faultPlan) error {
	note := fmt.Sprint(f.pick)
	err := l.helm(ctx, "upgrade", release, chart, "--reuse-values", "--hide-notes", "--set-string",
		"kubeletPlugin.podAnnotations.chaos="+note, "--set-string", "controller.podAnnotations.chaos="+note)
	pause(ctx, f.hold)
	return errors.Join(err, l.helm(context.WithoutCancel(ctx), "rollback", release))
}

// helm repeats a command while the API server or the webhooks recover from a fault before.
func (l *lab) helm(ctx context.Context, args ...string) error {
	var err error
	for range 60 {
		if _, err = run(ctx, l.options.helm, append(args, "--namespace", release, "--kubeconfig",
			l.options.kubeconfig)...); err == nil {
			return nil
		}
		pause(ctx, 2*time.Second)
	}
	return err
}
