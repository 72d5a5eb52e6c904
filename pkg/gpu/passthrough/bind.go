// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Bind binds the function to vfio-pci. It completes what an earlier call has begun, and changes nothing if that is its
// driver. Errors: ErrGone; gpu.ErrBusy, also if ctx ends while the kernel waits for users of the function. Then the
// kernel may finish the write later.
func (b Bus) Bind(ctx context.Context, at gpu.PCIAddress) error {
	return b.change(ctx, at, "bind "+at.String()+" to "+Driver, func(write writer) error {
		now := b.DriverOf(at)
		if now == Driver {
			return nil
		}
		if !b.Registered() {
			return errors.New("the driver is not registered: load the kernel module " + Driver)
		}
		if b.override(at) != Driver { // first, so that no other driver takes it when it is free
			if err := write(b.function(at, "driver_override"), Driver); err != nil {
				return err
			}
		}
		if now != "" {
			if err := b.unbind(write, at, now); err != nil {
				return err
			}
		}
		return b.attach(write, at, Driver)
	})
}

// Return takes the functions of a card from vfio-pci, resets those that can be reset, and binds each to its driver;
// empty: to none. It completes what an earlier call, or one of Bind, has begun. All are unbound before any is bound
// again: kernels before 5.19 may panic when a driver gets a function while vfio-pci has another one of its group.
//
// A function whose driver is not registered any more gets none: the kernel binds it when the driver is loaded. One that
// somebody else has bound keeps its driver. One that cannot be reset, or that its driver does not take, stays without
// one, and the others return. Errors are those of Bind, but ErrGone only if all functions are gone.
func (b Bus) Return(ctx context.Context, functions []gpu.PCIFunction) error {
	var gone, failed error
	left := functions
	for i, do := range []func(context.Context, writer, gpu.PCIFunction) error{b.free, b.reset, b.giveBack} {
		var done []gpu.PCIFunction
		for _, f := range left {
			err := b.change(ctx, f.PCI, "return "+f.PCI.String()+" from "+Driver, func(write writer) error {
				return do(ctx, write, f)
			})
			switch {
			case err == nil:
				done = append(done, f)
			case errors.Is(err, ErrGone):
				gone = err
			case i == 0, errors.Is(err, gpu.ErrBusy), ctx.Err() != nil:
				return err
			default:
				failed = errors.Join(failed, err)
			}
		}
		left = done
	}
	if failed == nil && len(left) == 0 {
		return gone
	}
	return failed
}

func (b Bus) free(_ context.Context, write writer, f gpu.PCIFunction) error {
	if b.DriverOf(f.PCI) != Driver {
		return nil
	}
	return b.unbind(write, f.PCI, Driver)
}

func (b Bus) reset(_ context.Context, write writer, f gpu.PCIFunction) error {
	file := b.function(f.PCI, "reset")
	if b.DriverOf(f.PCI) != "" || !exists(file) {
		return nil
	}
	// ENOTTY: the kernel could only reset the whole bus, which has other functions.
	if err := write(file, "1"); err != nil && !errors.Is(err, syscall.ENOTTY) {
		return err
	}
	return nil
}

func (b Bus) giveBack(ctx context.Context, write writer, f gpu.PCIFunction) error {
	if b.override(f.PCI) == Driver {
		if err := write(b.function(f.PCI, "driver_override"), "\n"); err != nil {
			return err
		}
	}
	logger := klog.FromContext(ctx).WithValues("function", f.PCI, "driver", f.Driver)
	switch now := b.DriverOf(f.PCI); {
	case now == f.Driver, f.Driver == "":
		return nil
	case now != "":
		logger.Info("Function keeps the driver that somebody else has bound it to", "has", now)
		return nil
	case !exists(b.driver(f.Driver, "")):
		logger.Info("Function has no driver: the one that it had is not registered any more")
		return nil
	}
	return b.attach(write, f.PCI, f.Driver)
}

// override returns the only driver that the kernel lets the function have; empty: any that knows it.
func (b Bus) override(at gpu.PCIAddress) string {
	text, err := os.ReadFile(b.function(at, "driver_override"))
	if name := strings.TrimSpace(string(text)); err == nil && name != "(null)" {
		return name
	}
	return ""
}

func (b Bus) unbind(write writer, at gpu.PCIAddress, from string) error {
	err := write(b.driver(from, "unbind"), at.String())
	switch now := b.DriverOf(at); {
	case now == "":
		return nil // also if somebody else has been faster
	case err == nil:
		return fmt.Errorf("it has the driver %s after it was unbound from %s", now, from)
	}
	return err
}

func (b Bus) attach(write writer, at gpu.PCIAddress, to string) error {
	err := write(b.driver(to, "bind"), at.String())
	switch now := b.DriverOf(at); {
	case now == to:
		return nil // also if somebody else has been faster
	case err == nil:
		return fmt.Errorf("it has the driver %q after it was bound to %s", now, to)
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("%s does not take it, the kernel's log may say why: %w", to, err)
	}
	return err
}
