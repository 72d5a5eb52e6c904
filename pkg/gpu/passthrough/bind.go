// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

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

// Return takes the function from vfio-pci, resets it if it can be reset, and binds it to the driver; empty: to none. It
// completes what an earlier call, or one of Bind, has begun. A function that has another driver than vfio-pci keeps it:
// this returns an error if that is not the wanted one. Errors are those of Bind.
func (b Bus) Return(ctx context.Context, at gpu.PCIAddress, driver string) error {
	return b.change(ctx, at, "return "+at.String()+" from "+Driver, func(write writer) error {
		now := b.DriverOf(at)
		if now == Driver {
			if err := b.unbind(write, at, now); err != nil {
				return err
			}
			now = ""
		}
		if reset := b.function(at, "reset"); now == "" && exists(reset) {
			// ENOTTY: the kernel could only reset the whole bus, which has other functions.
			if err := write(reset, "1"); err != nil && !errors.Is(err, syscall.ENOTTY) {
				return err
			}
		}
		if b.override(at) == Driver {
			if err := write(b.function(at, "driver_override"), "\n"); err != nil {
				return err
			}
		}
		switch {
		case now == driver, now != "" && driver == "":
			return nil
		case now != "":
			return fmt.Errorf("it has the driver %s, not %s: somebody else has bound it", now, driver)
		case !exists(b.driver(driver, "")):
			return fmt.Errorf("its driver %s is not registered any more: it has none now", driver)
		}
		return b.attach(write, at, driver)
	})
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
