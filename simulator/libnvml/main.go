// SPDX-License-Identifier: Apache-2.0

// libnvml is libnvidia-ml.so.1 for simulated GPUs: NVML's C interface over the simulator. The program build compiles it
// together with a C function for every function of NVML's header. docs/project/nvml-library.md says how to use it.
package main

// #include <stdint.h>
// #include <stdlib.h>
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/libnvml/binding"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

var library = binding.New(open)

func main() {}

// callNVML calls the function. Each argument is a number or a pointer; its size is that of what the pointer points to,
// or 0 for a number.
//
//export callNVML
func callNVML(name *C.char, arguments *C.uint64_t, sizes *C.uint32_t, count C.int) C.int {
	return C.int(library.Call(C.GoString(name), unsafe.Slice((*uint64)(arguments), count),
		unsafe.Slice((*uint32)(sizes), count)))
}

var errorStrings sync.Map // from a number to its *C.char, which stays allocated

// nvmlErrorString returns the text of an error code.
//
//export nvmlErrorString
func nvmlErrorString(code C.int) *C.char {
	if text, ok := errorStrings.Load(code); ok {
		return text.(*C.char)
	}
	text := C.CString(binding.ErrorString(nvml.Return(code)))
	if first, ok := errorStrings.LoadOrStore(code, text); ok {
		C.free(unsafe.Pointer(text))
		return first.(*C.char)
	}
	return text
}

// setting returns the environment variable as C programs see it, also if the process has set it after its start.
func setting(name string) string {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.GoString(C.getenv(c))
}

// opened is the last opened node, because the next Init most often wants the same.
var opened struct {
	sync.Mutex
	dir, profile string
	node         *simulator.Node
}

// open opens the node that the variables of the kubelet plugin name: the directory SIMULATE_DIR, and SIMULATE_PROFILE
// if the node is to be created.
func open() (nvml.Interface, nvml.Return) {
	dir, profile := setting("SIMULATE_DIR"), setting("SIMULATE_PROFILE")
	opened.Lock()
	defer opened.Unlock()
	if opened.node == nil || opened.dir != dir || opened.profile != profile {
		n, err := openNode(dir, profile)
		if err != nil {
			fmt.Fprintln(os.Stderr, "libnvidia-ml of simulated GPUs:", err)
			return nil, nvml.ERROR_DRIVER_NOT_LOADED
		}
		opened.dir, opened.profile, opened.node = dir, profile, n
	}
	lib := opened.node.NVML()
	return lib, lib.Init()
}

// openNode opens the node in dir, or else the default one. Without variables, a container has the GPUs of its claim.
func openNode(dir, profile string) (*simulator.Node, error) {
	at := cmp.Or(dir, simulator.DefaultDir)
	if profile != "" {
		p, err := simulator.FindProfile(profile, "")
		if err != nil {
			return nil, err
		}
		return simulator.Open(at, p)
	}
	n, err := simulator.Attach(at)
	if dir == "" && errors.Is(err, simulator.ErrNoNode) {
		if found, root, missing := smi.Here().Node(); missing == nil {
			return simulator.Within(found, root), nil
		}
	}
	return n, err
}
