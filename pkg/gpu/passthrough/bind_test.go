// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	at    = "0000:3b:00.0"
	bound = at + " 10de:26b5 030200 nvidia 42 reset\n"
	given = at + " 10de:26b5 030200 vfio-pci 42 reset\n"
	free  = at + " 10de:26b5 030200 - 42 reset\n"
	fixed = at + " 10de:26b5 030200 vfio-pci 42\n" // cannot be reset

	set, cleared    = "devices/" + at + "/driver_override vfio-pci", "devices/" + at + "/driver_override"
	reset           = "devices/" + at + "/reset 1"
	toVFIO, fromIt  = "drivers/vfio-pci/bind " + at, "drivers/vfio-pci/unbind " + at
	toIt, fromOwner = "drivers/nvidia/bind " + at, "drivers/nvidia/unbind " + at
)

// toOwner returns the function to NVIDIA's driver.
var toOwner = []gpu.PCIFunction{{PCI: gpu.PCIAddress{Bus: 0x3b}, Driver: "nvidia"}}

func TestBindAndReturn(t *testing.T) {
	bind := func(b Bus, pci gpu.PCIAddress) error { return b.Bind(context.Background(), pci) }
	giveTo := func(driver string) func(Bus, gpu.PCIAddress) error {
		return func(b Bus, pci gpu.PCIAddress) error {
			return b.Return(context.Background(), []gpu.PCIFunction{{PCI: pci, Driver: driver}})
		}
	}
	for _, row := range []struct {
		name      string
		functions string
		override  string
		do        func(Bus, gpu.PCIAddress) error
		writes    []string
		state     string
	}{
		{"bind", bound, "", bind, []string{set, fromOwner, toVFIO}, "vfio-pci vfio-pci"},
		{"bind: no driver", free, "", bind, []string{set, toVFIO}, "vfio-pci vfio-pci"},
		{"bind again: override set", bound, Driver, bind, []string{fromOwner, toVFIO}, "vfio-pci vfio-pci"},
		{"bind again: unbound", free, Driver, bind, []string{toVFIO}, "vfio-pci vfio-pci"},
		{"bind again: bound", given, Driver, bind, nil, "vfio-pci vfio-pci"},
		{"bind: somebody else has bound it without driver_override", given, "", bind, nil, "vfio-pci (null)"},

		{"return", given, Driver, giveTo("nvidia"), []string{fromIt, reset, cleared, toIt}, "nvidia (null)"},
		{"return: to no driver", given, Driver, giveTo(""), []string{fromIt, reset, cleared}, "none (null)"},
		{"return: it cannot be reset", fixed, Driver, giveTo("nvidia"), []string{fromIt, cleared, toIt},
			"nvidia (null)"},
		{"return: the kernel could reset the whole bus only", given, Driver, func(b Bus, pci gpu.PCIAddress) error {
			write := b.Write
			b.Write = func(file, text string) error {
				return errors.Join(write(file, text), map[string]error{"reset": syscall.ENOTTY}[filepath.Base(file)])
			}
			return giveTo("nvidia")(b, pci)
		}, []string{fromIt, reset, cleared, toIt}, "nvidia (null)"},
		{"return again: unbound", free, Driver, giveTo("nvidia"), []string{reset, cleared, toIt}, "nvidia (null)"},
		{"return again: override cleared", free, "", giveTo("nvidia"), []string{reset, toIt}, "nvidia (null)"},
		{"return again: returned", bound, "", giveTo("nvidia"), nil, "nvidia (null)"},
		{"return: bind was not completed", bound, Driver, giveTo("nvidia"), []string{cleared}, "nvidia (null)"},
		{"return: an override of the administrator", free, "nvidia", giveTo("nvidia"), []string{reset, toIt},
			"nvidia nvidia"},
		{"return: to no driver, and it got one", bound, "", giveTo(""), nil, "nvidia (null)"},
		{"return: its driver is not registered any more", given, Driver, giveTo("nouveau"),
			[]string{fromIt, reset, cleared}, "none (null)"},
		{"return: somebody has bound it to another driver", bound, Driver, giveTo("nouveau"), []string{cleared},
			"nvidia (null)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := newTree(t, row.functions, Driver, "nvidia")
			if row.override != "" {
				k.file("bus/pci/devices/"+at+"/driver_override", row.override+"\n")
			}
			if err := row.do(k.bus(), address(t, at)); err != nil {
				t.Fatal(err)
			}
			same(t, "writes", k.written(), row.writes)
			if got := k.state(at); got != row.state {
				t.Errorf("got %s, want %s", got, row.state)
			}
			err := row.do(k.bus(), address(t, at))
			if writes := fmt.Sprint(k.written()); err != nil || strings.Contains(writes, "bind") {
				t.Errorf("said again: got %v, writes %s", err, writes)
			}
		})
	}
}

// The process crashes before each write and after it. The call, said again, completes; so does the opposite one.
func TestEveryStep(t *testing.T) {
	bind := func(b Bus) error { return b.Bind(context.Background(), gpu.PCIAddress{Bus: 0x3b}) }
	giveBack := func(b Bus) error { return b.Return(context.Background(), toOwner) }
	for _, row := range []struct {
		name      string
		functions string
		first     func(Bus) error
		then      func(Bus) error
		want      string
	}{
		{"bind, bind", bound, bind, bind, "vfio-pci vfio-pci"},
		{"bind, return", bound, bind, giveBack, "nvidia (null)"},
		{"return, return", given, giveBack, giveBack, "nvidia (null)"},
		{"return, bind", given, giveBack, bind, "vfio-pci vfio-pci"},
	} {
		for n := 1; ; n++ {
			k := newTree(t, row.functions, Driver, "nvidia")
			if row.functions == given {
				k.file("bus/pci/devices/"+at+"/driver_override", Driver+"\n")
			}
			left := n
			b := k.bus()
			b.Write = func(file, text string) error {
				if left--; left <= 0 {
					return errors.New("crash")
				}
				err := k.write(file, text)
				if left--; left <= 0 {
					return errors.New("crash")
				}
				return err
			}
			first := row.first(b)
			if left > 0 {
				if n < 6 {
					t.Errorf("%s: no write was crashed at", row.name)
				}
				break
			}
			b.Write = k.write
			if err := row.then(b); err != nil {
				t.Errorf("%s, crash %d (%v): %v", row.name, n, first, err)
			}
			if got := k.state(at); got != row.want {
				t.Errorf("%s, crash %d (%v): got %s, want %s", row.name, n, first, got, row.want)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	refusing := func(name string, err error) func(*tree) {
		return func(k *tree) {
			k.refuse = func(file, _ string) error {
				if file == name {
					return err
				}
				return nil
			}
		}
	}
	for _, row := range []struct {
		name      string
		functions string
		kernel    func(*tree)
		do        string
		is        error
		says      string
		state     string
	}{
		{"the function is gone", "", nil, "bind", ErrGone,
			"bind 0000:3b:00.0 to vfio-pci: not on the PCI bus", "none "},
		{"the function is gone when it is returned", "", nil, "return", ErrGone,
			"return 0000:3b:00.0 from vfio-pci: not on the PCI bus", "none "},
		{"it vanishes meanwhile", bound, func(k *tree) {
			k.refuse = func(string, string) error { k.remove("bus/pci/devices/" + at); return syscall.ENOENT }
		}, "bind", ErrGone, "driver_override: no such file", "none "},
		{"vfio-pci is not registered", bound, func(k *tree) { k.remove("bus/pci/drivers/vfio-pci") }, "bind", nil,
			"the driver is not registered: load the kernel module vfio-pci", "nvidia (null)"},
		{"the driver says that it is in use", bound, refusing("drivers/nvidia/unbind", syscall.EBUSY), "bind",
			gpu.ErrBusy, "drivers/nvidia/unbind: the GPU is in use: device or resource busy", "nvidia vfio-pci"},
		{"vfio-pci does not take it", bound, refusing("drivers/vfio-pci/bind", syscall.ENODEV), "bind", syscall.ENODEV,
			"vfio-pci does not take it, the kernel's log may say why: write", "none vfio-pci"},
		{"vfio-pci cannot initialize it", bound, refusing("drivers/vfio-pci/bind", syscall.EINVAL), "bind",
			syscall.EINVAL, "drivers/vfio-pci/bind: invalid argument", "none vfio-pci"},
		{"the reset fails", given, refusing("devices/"+at+"/reset", syscall.EIO), "return", syscall.EIO,
			"/reset: input/output error", "none (null)"},
		{"its driver does not take it", given, refusing("drivers/nvidia/bind", syscall.ENODEV), "return",
			syscall.ENODEV, "nvidia does not take it, the kernel's log may say why: write",
			"none (null)"},
		{"unbind has no effect", bound, func(k *tree) { k.ignored = true }, "bind", nil,
			"it has the driver nvidia after it was unbound from nvidia", "nvidia (null)"},
		{"bind has no effect", free, func(k *tree) { k.ignored = true }, "bind", nil,
			`it has the driver "" after it was bound to vfio-pci`, "none (null)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := newTree(t, row.functions, Driver, "nvidia")
			if row.kernel != nil {
				row.kernel(k)
			}
			do := k.bus().Bind
			if row.do == "return" {
				do = func(ctx context.Context, _ gpu.PCIAddress) error { return k.bus().Return(ctx, toOwner) }
			}
			err := do(t.Context(), address(t, at))
			if err == nil || !strings.Contains(err.Error(), row.says) || row.is != nil && !errors.Is(err, row.is) {
				t.Errorf("got %v, want %q", err, row.says)
			}
			if row.is == nil && (errors.Is(err, ErrGone) || errors.Is(err, gpu.ErrBusy)) {
				t.Errorf("got %v, which is another kind of error", err)
			}
			if got := k.state(at); got != row.state {
				t.Errorf("got %s, want %s", got, row.state)
			}
		})
	}
}

// The functions of a card are all unbound, then reset, then bound again. One that fails does not keep the others,
// unless it cannot be unbound.
func TestReturnOfACard(t *testing.T) {
	const (
		sound = "0000:3b:00.1"
		card  = given + sound + " 10de:22ba 040300 vfio-pci 42 reset\n"
		gone  = given
	)
	functions := append(slices.Clone(toOwner), gpu.PCIFunction{PCI: gpu.PCIAddress{Bus: 0x3b, Function: 1},
		Driver: "snd_hda_intel"})
	const (
		unbound = "drivers/vfio-pci/unbind 3b:00.0, drivers/vfio-pci/unbind 3b:00.1"
		resets  = unbound + ", devices/3b:00.0/reset 1, devices/3b:00.1/reset 1"
		owner   = ", drivers/nvidia/bind 3b:00.0"
		other   = ", drivers/snd_hda_intel/bind 3b:00.1"
	)
	for _, row := range []struct{ name, functions, refuse, writes, says, want string }{
		{"all", card, "", resets + owner + other, "", "nvidia snd_hda_intel"},
		{"one cannot be unbound", card, "drivers/vfio-pci/unbind " + sound, unbound, "return " + sound,
			"none vfio-pci"},
		{"one cannot be reset", card, "devices/" + at + "/reset 1", resets + other, "return " + at,
			"none snd_hda_intel"},
		{"a driver does not take one", card, "drivers/snd_hda_intel/bind " + sound, resets + owner + other,
			"return " + sound, "nvidia none"},
		{"one is gone", gone, "", "drivers/vfio-pci/unbind 3b:00.0, devices/3b:00.0/reset 1" + owner, "",
			"nvidia none"},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := newTree(t, row.functions, "nvidia", "snd_hda_intel")
			k.refuse = func(file, text string) error {
				if file+" "+text == row.refuse {
					return syscall.EIO
				}
				return nil
			}
			err := k.bus().Return(t.Context(), functions)
			if !strings.Contains(fmt.Sprint(err), row.says) || row.says == "" && err != nil {
				t.Errorf("got %v, want %q", err, row.says)
			}
			if got := strings.ReplaceAll(strings.Join(k.written(), ", "), "0000:", ""); got != row.writes {
				t.Errorf("writes: got\n%s\nwant\n%s", got, row.writes)
			}
			owner, _, _ := strings.Cut(k.state(at), " ")
			other, _, _ := strings.Cut(k.state(sound), " ")
			if got := owner + " " + other; got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// The kernel's write lasts longer than the call: it is not repeated while it lasts, nothing is written after it for the
// call that has ended, other functions are not affected, and the next call completes.
func TestBlockedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTree(t, bound+"0000:af:00.0 10de:26b5 030200 nvidia 43\n", Driver)
		inUse := make(chan struct{})
		k.refuse = func(file, text string) error {
			if file == "drivers/nvidia/unbind" && text == at {
				<-inUse
			}
			return nil
		}
		b := k.bus()
		var writes []string
		for _, again := range []func(context.Context) error{
			func(ctx context.Context) error { return b.Bind(ctx, address(t, at)) },
			func(ctx context.Context) error { return b.Bind(ctx, address(t, at)) },
			func(ctx context.Context) error { return b.Return(ctx, toOwner) },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := again(ctx)
			cancel()
			if !errors.Is(err, gpu.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "bus/pci/drivers/nvidia/unbind") {
				t.Errorf("got %v, want that the GPU is in use", err)
			}
			writes = append(writes, k.written()...)
		}
		same(t, "writes", writes, []string{set, fromOwner})
		err := b.Bind(t.Context(), address(t, "0000:af:00.0"))
		if writes := k.written(); err != nil || len(writes) != 3 {
			t.Errorf("another function: got %v, writes %v", err, writes)
		}

		close(inUse)
		synctest.Wait()
		if got := k.state(at); got != "none vfio-pci" {
			t.Errorf("after the write: got %s, want none vfio-pci", got)
		}
		same(t, "writes after the call", k.written(), nil)
		if err := b.Bind(t.Context(), address(t, at)); err != nil {
			t.Error(err)
		}
		same(t, "writes", k.written(), []string{toVFIO})
	})
}

// A call that waits for an earlier one acts on what that has left.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTree(t, bound, Driver)
		inUse := make(chan struct{})
		k.refuse = func(file, _ string) error {
			if file == "drivers/nvidia/unbind" {
				<-inUse
			}
			return nil
		}
		results := make(chan error, 2)
		for range 2 {
			go func() { results <- k.bus().Bind(t.Context(), gpu.PCIAddress{Bus: 0x3b}) }()
		}
		synctest.Wait()
		close(inUse)
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		same(t, "writes", k.written(), []string{set, fromOwner, toVFIO})
	})
}

// Nothing is begun for a call that has ended.
func TestEndedCall(t *testing.T) {
	k := newTree(t, bound, Driver)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := k.bus().Bind(ctx, address(t, at))
	if writes := k.written(); !errors.Is(err, context.Canceled) || len(writes) > 0 {
		t.Errorf("got %v, writes %v", err, writes)
	}
}

// The real write needs the file, and writes it at once.
func TestWriteSysfs(t *testing.T) {
	k := newTree(t, bound)
	b := k.bus()
	b.Write = nil
	for _, name := range []string{"reset", "missing"} {
		err := b.write(b.function(address(t, at), name), "1")
		if (err != nil) != (name == "missing") || err != nil && (!errors.Is(err, syscall.ENOENT) ||
			!strings.HasSuffix(err.Error(), name+": no such file or directory")) {
			t.Errorf("%s: got %v", name, err)
		}
		if exists(b.function(address(t, at), "missing")) {
			t.Error("the file was created")
		}
	}
}
