// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// passthrough simulates the PCI bus of the fixture. Each change is a step, as on real hardware.
type passthrough struct{ w *fixture }

func (p passthrough) Persistent(_ context.Context, id gpu.UUID) (bool, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.persistent[id], nil
}

func (p passthrough) BindVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction) error {
	if p.w.bound[functions[0].PCI] && p.w.bound[functions[len(functions)-1].PCI] {
		return nil
	}
	h := hardware(p)
	if err := h.step(ctx, steps.DisableMIG, func() error {
		if p.w.busy {
			return fmt.Errorf("process 7 (exporter): %w", gpu.ErrBusy)
		}
		return p.w.setMIG(id, false)
	}); err != nil {
		return err
	}
	if err := h.step(ctx, steps.DisablePersistence, func() error {
		delete(p.w.persistent, id)
		return nil
	}); err != nil {
		return err
	}
	for _, f := range functions {
		if err := h.step(ctx, steps.BindVFIO, func() error { p.w.bound[f.PCI] = true; return nil }); err != nil {
			return err
		}
	}
	return nil
}

func (p passthrough) ReturnVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction, persistent bool) error {
	h := hardware(p)
	if p.w.stuck {
		return errors.New("reset: input/output error")
	}
	for _, f := range functions {
		if f.Driver == "" {
			return errors.New("the driver of a function was forgotten")
		}
		if err := h.step(ctx, steps.ReturnVFIO, func() error { delete(p.w.bound, f.PCI); return nil }); err != nil {
			return err
		}
	}
	if !persistent {
		return nil
	}
	return h.step(ctx, steps.EnablePersistence, func() error { p.w.persistent[id] = true; return nil })
}

func (p passthrough) VFIONodes(at gpu.PCIAddress, iommufd bool) ([]gpu.DeviceNode, error) {
	if !p.w.bound[at] {
		return nil, fmt.Errorf("%s is not bound", at)
	}
	paths := []string{fmt.Sprint("/dev/vfio/", at.Bus), "/dev/vfio/vfio"}
	if iommufd {
		paths = []string{fmt.Sprint("/dev/vfio/devices/vfio", at.Bus), "/dev/iommu"}
	}
	var nodes []gpu.DeviceNode
	for _, path := range paths {
		nodes = append(nodes, gpu.DeviceNode{Path: path, HostPath: path, Type: "c"})
	}
	return nodes, nil
}

func (p passthrough) CreateVGPU(ctx context.Context, at gpu.PCIAddress, name, uuid string) error {
	return hardware(p).step(ctx, steps.CreateVGPU, func() error {
		if p.w.vgpus[uuid] == "" && p.w.busy {
			return fmt.Errorf("no room: %w", gpu.ErrBusy)
		}
		p.w.vgpus[uuid] = fmt.Sprintf("%s of %s", name, at)
		return nil
	})
}

func (p passthrough) RemoveVGPU(ctx context.Context, _ gpu.PCIAddress, uuid string) error {
	return hardware(p).step(ctx, steps.RemoveVGPU, func() error {
		if p.w.vgpus[uuid] != "" && p.w.busy {
			return fmt.Errorf("process 7 (qemu): %w", gpu.ErrBusy)
		}
		delete(p.w.vgpus, uuid)
		return nil
	})
}

func (p passthrough) VGPUNodes(uuid string, _ bool) ([]gpu.DeviceNode, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.vgpus[uuid] == "" {
		return nil, fmt.Errorf("there is no vGPU %s", uuid)
	}
	path := "/dev/vfio/" + uuid[:2]
	return []gpu.DeviceNode{{Path: path, HostPath: path, Type: "c"}}, nil
}

// State of a claim a with gpu-1 for a virtual machine.
const (
	aBound  = "0000:01:00.0: vfio-pci\n0000:01:00.1: vfio-pci\n"
	aCDI    = "cdi a-gpu-1-vfio /dev/vfio/1 /dev/vfio/vfio NVIDIA_VISIBLE_DEVICES=void"
	aHasVM  = aBound + "a Prepared boot-0 gpu-1-vfio\n" + aCDI
	aStuck  = aBound + "a Releasing boot-0 gpu-1-vfio"
	notBack = "the settings of its GPUs are not restored: GPU GPU-1: reset: input/output error"
	inUse   = "is held by claim ns/a (UID a)"
)

func TestVirtualMachines(t *testing.T) {
	for _, row := range []struct {
		name, script, result, want string
	}{
		{"a claim gets a GPU with the other functions of its card, and nothing of NVIDIA's driver",
			"prepare a gpu-1-vfio", "r0=node/gpu-1-vfio", aHasVM},
		{"prepare twice", "prepare a gpu-1-vfio; prepare a gpu-1-vfio", "r0=node/gpu-1-vfio", aHasVM},
		{"a restart changes nothing", "prepare a gpu-1-vfio; restart", "ok", aHasVM},
		{"a lost CDI file", "prepare a gpu-1-vfio; lose claim_a; restart", "ok", aHasVM},
		{"nothing is left of it", "prepare a gpu-1-vfio; unprepare a; unprepare a", "ok", ""},
		{"persistence mode comes back", "persist GPU-1; prepare a gpu-1-vfio; restart; unprepare a", "ok",
			"GPU-1: persistent"},
		{"iommufd, without the node that belongs to no GPU", "prepare a gpu-1-vfio iommufd", "r0=node/gpu-1-vfio",
			aBound + "a Prepared boot-0 gpu-1-vfio\ncdi a-gpu-1-vfio /dev/vfio/devices/vfio1 " +
				"NVIDIA_VISIBLE_DEVICES=void"},
		{"a variable", "prepare a gpu-1-vfio A=1", "r0=node/gpu-1-vfio",
			aBound + "a Prepared boot-0 gpu-1-vfio\ncdi a-gpu-1-vfio /dev/vfio/1 /dev/vfio/vfio A=1 " +
				"NVIDIA_VISIBLE_DEVICES=void"},
		{"one for a virtual machine and one for the container", "prepare a gpu-1-vfio,gpu-2",
			"r0=node/gpu-1-vfio r1=node/gpu-2", aBound + "a Prepared boot-0 gpu-1-vfio,gpu-2\n" + aCDI +
				"\ncdi a-gpu-2 /dev/nvidia1" + common},

		{"the whole GPU is held", "prepare a gpu-1-vfio; prepare b gpu-1",
			"error: request r0: device gpu-1 " + inUse + ", which has gpu-1-vfio: device in use", aHasVM},
		{"so are shares", "prepare a gpu-1-vfio; prepare b gpu-1#s:5Gi/30",
			"error: request r0: device gpu-1 " + inUse + ", which has gpu-1-vfio: device in use", aHasVM},
		{"so are partitions", "prepare a gpu-1-vfio; prepare b gpu-1-mig-1g10gb-0",
			"error: request r0: device gpu-1-mig-1g10gb-0 " + inUse + ", which has gpu-1-vfio: device in use", aHasVM},
		{"so is the virtual machine's GPU", "prepare a gpu-1-vfio; prepare b gpu-1-vfio",
			"error: request r0: device gpu-1-vfio " + inUse + ": device in use", aHasVM},
		{"another claim has the whole GPU", "prepare a gpu-1; prepare b gpu-1-vfio",
			"error: request r0: device gpu-1-vfio " + inUse + ", which has gpu-1: device in use", aHas1},
		{"or a partition", "prepare a gpu-1-mig-1g10gb-0; prepare b gpu-1-vfio",
			"error: request r0: device gpu-1-vfio " + inUse + ", which has gpu-1-mig-1g10gb-0: device in use", aSlice},
		{"or the same claim", "prepare a gpu-1,gpu-1-vfio", "error: request r1: device gpu-1-vfio is held by request " +
			"r0 of the same claim, which has gpu-1: device in use", ""},
		{"it cannot be monitored", "prepare a gpu-1-vfio!", "error: request r0: device gpu-1-vfio is for virtual " +
			"machines, so it cannot be monitored; ask for the device monitor: configuration refused", ""},
		{"a program uses it", "busy yes; prepare a gpu-1-vfio",
			"error: GPU GPU-1: process 7 (exporter): the GPU is in use", "a Preparing boot-0 gpu-1-vfio"},
		{"and has ended", "busy yes; prepare a gpu-1-vfio; busy no; prepare a gpu-1-vfio", "r0=node/gpu-1-vfio",
			aHasVM},
		{"the claim ends before the program", "busy yes; prepare a gpu-1-vfio; unprepare a", "ok", ""},

		{"a GPU that does not come back keeps no pod, but its record",
			"prepare a gpu-1-vfio; stuck yes; unprepare a; unprepare a", "error: " + notBack, aStuck},
		{"no other claim gets it", "prepare a gpu-1-vfio; stuck yes; unprepare a; prepare b gpu-1",
			"error: request r0: device gpu-1 " + inUse + ", which has gpu-1-vfio: device in use", aStuck},
		{"the claim's other GPU is free", "prepare a gpu-1-vfio,gpu-2 Long; stuck yes; unprepare a; prepare b gpu-2",
			"r0=node/gpu-2", aBound + "a Releasing boot-0 gpu-1-vfio\nb Prepared boot-0 gpu-2\n" +
				"cdi b-gpu-2 /dev/nvidia1" + common},
		{"the claim can be allocated again", "prepare a gpu-1-vfio; stuck yes; prepare a gpu-2; prepare b gpu-1",
			"error: request r0: device gpu-1 is held by claim ns/a (UID a-gpu-1), which has gpu-1-vfio: device in use",
			aBound + "a-gpu-1 Releasing boot-0 gpu-1-vfio\na Prepared boot-0 gpu-2\ncdi a-gpu-2 /dev/nvidia1" + common},
		{"and what it has left is released later",
			"prepare a gpu-1-vfio; stuck yes; prepare a gpu-2; stuck no; restart; unprepare a", "ok",
			"cdi common NVIDIA_VISIBLE_DEVICES=void"},
		{"it comes back later", "prepare a gpu-1-vfio; stuck yes; unprepare a; stuck no; unprepare a", "ok", ""},
		{"it comes back after a restart", "prepare a gpu-1-vfio; stuck yes; unprepare a; stuck no; restart", "ok", ""},
		{"or after a reboot", "prepare a gpu-1-vfio; stuck yes; unprepare a; reboot; unprepare a", "ok", ""},
		{"beside an unreadable record", "prepare b gpu-1; prepare a gpu-2-vfio; truncate b; stuck yes; unprepare a; " +
			"stuck no; unprepare a", "ok", "unreadable b.json\ncdi b-gpu-1 /dev/nvidia0" + common},

		{"after a reboot it is bound again", "prepare a gpu-1-vfio; reboot; prepare a gpu-1-vfio", "r0=node/gpu-1-vfio",
			aBound + "a Prepared boot-1 gpu-1-vfio\n" + aCDI},
		{"with the persistence mode that it has then",
			"prepare a gpu-1-vfio; reboot; persist GPU-1; restart; unprepare a", "ok", "GPU-1: persistent"},
		{"after a reboot nothing is returned", "persist GPU-1; prepare a gpu-1-vfio; reboot; unprepare a", "ok", ""},
		{"a GPU that somebody else has bound", "external gpu-1; prepare a gpu-1-vfio", "r0=node/gpu-1-vfio",
			"0000:01:00.0: vfio-pci\na Prepared boot-0 gpu-1-vfio\n" + aCDI},
		{"stays as it is", "external gpu-1; prepare a gpu-1-vfio; unprepare a", "ok", "0000:01:00.0: vfio-pci"},
		{"an unreadable record keeps no GPU from being returned",
			"prepare b gpu-1; prepare a gpu-2-vfio; truncate b; unprepare a", "ok",
			"unreadable b.json\ncdi b-gpu-1 /dev/nvidia0" + common},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			got := w.run(row.script)
			if got != row.result {
				t.Errorf("got  %s\nwant %s", got, row.result)
			}
			if diff := cmp.Diff(w.String(), row.want); diff != "" {
				t.Errorf("state: got - want +\n%s", diff)
			}
		})
	}
}
