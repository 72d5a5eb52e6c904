// SPDX-License-Identifier: Apache-2.0

package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

typedef int (*cu_init)(unsigned int);
typedef int (*cu_device_get)(int *, int);
typedef int (*cu_ctx_create)(void **, unsigned int, int);
typedef int (*cu_mem_alloc)(unsigned long long *, size_t);

static int call_init(void *f) { return ((cu_init)f)(0); }
static int call_device_get(void *f, int *device) { return ((cu_device_get)f)(device, 0); }
static int call_ctx_create(void *f, int device) { void *context; return ((cu_ctx_create)f)(&context, 0, device); }
static int call_mem_alloc(void *f, size_t size) { unsigned long long at; return ((cu_mem_alloc)f)(&at, size); }
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// cudaGPU is a GPU with a CUDA context, which belongs to the calling thread.
type cudaGPU struct{ memAlloc unsafe.Pointer }

// cudaOutOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const cudaOutOfMemory = 2

// openCUDA loads the CUDA library and creates a context on its first GPU. The caller stays on its thread.
func openCUDA(library string) (cudaGPU, error) {
	runtime.LockOSThread()
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	handle := C.dlopen(path, C.RTLD_NOW|C.RTLD_GLOBAL)
	if handle == nil {
		return cudaGPU{}, fmt.Errorf("load %s: %s", library, C.GoString(C.dlerror()))
	}
	functions := map[string]unsafe.Pointer{}
	for _, name := range []string{"cuInit", "cuDeviceGet", "cuCtxCreate_v2", "cuMemAlloc_v2"} {
		text := C.CString(name)
		functions[name] = C.dlsym(handle, text)
		C.free(unsafe.Pointer(text))
		if functions[name] == nil {
			return cudaGPU{}, fmt.Errorf("%s has no %s", library, name)
		}
	}
	var device C.int
	if err := cudaError("cuInit", C.call_init(functions["cuInit"])); err != nil {
		return cudaGPU{}, err
	}
	if err := cudaError("cuDeviceGet", C.call_device_get(functions["cuDeviceGet"], &device)); err != nil {
		return cudaGPU{}, err
	}
	if err := cudaError("cuCtxCreate", C.call_ctx_create(functions["cuCtxCreate_v2"], device)); err != nil {
		return cudaGPU{}, err
	}
	return cudaGPU{functions["cuMemAlloc_v2"]}, nil
}

// allocate allocates bytes on the GPU. Error: errOutOfMemory.
func (g cudaGPU) allocate(bytes uint64) error {
	return cudaError("cuMemAlloc", C.call_mem_alloc(g.memAlloc, C.size_t(bytes)))
}

func cudaError(call string, code C.int) error {
	switch code {
	case 0:
		return nil
	case cudaOutOfMemory:
		return errOutOfMemory
	}
	return fmt.Errorf("%s: CUDA error %d", call, code)
}
