// SPDX-License-Identifier: Apache-2.0

// Command floor is a DRA plugin that does as little as possible: what a driver cannot be faster than. `make bench`
// starts it beside the driver, in the namespaces of the driver's container, and measures both in turn.
//
// Every claim gets the edits of the CDI specification on standard input. Without -safe they are in one file that is
// written at the start. With -safe each claim has its own CDI file and a durable record, as a driver needs them that
// survives power cuts and kernel crashes, and loses both when it is released.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/google/renameio/v2"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	metadatav1alpha1 "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

const (
	cdiDir     = "/var/run/cdi"
	recordSize = 2 << 10
)

type floor struct {
	driver string
	edits  cdispecs.ContainerEdits
	safe   bool
	cdi    *cdiapi.Cache
	dir    string // of the plugin
}

func main() {
	driver := flag.String("driver", "", "name of the DRA driver, such as floor.example.com")
	node := flag.String("node", "", "name of the node")
	safe := flag.Bool("safe", false, "write a CDI file and a record for each claim")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, &floor{driver: *driver, safe: *safe}, *node)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, f *floor, node string) error {
	if err := json.NewDecoder(os.Stdin).Decode(&f.edits); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	f.dir = filepath.Join(kubeletplugin.KubeletPluginsDir, f.driver)
	if err := os.MkdirAll(f.dir, 0o750); err != nil {
		return err
	}
	defer os.RemoveAll(f.dir)
	if f.cdi, err = cdiapi.NewCache(cdiapi.WithSpecDirs(cdiDir), cdiapi.WithAutoRefresh(false)); err != nil {
		return err
	}
	if err := f.write("all"); err != nil {
		return err
	}
	defer func() { _ = f.cdi.RemoveSpec(f.file("all")) }()
	helper, err := kubeletplugin.Start(ctx, f, kubeletplugin.DriverName(f.driver), kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(f.dir),
		kubeletplugin.CDIDirectory(cdiDir), kubeletplugin.Serialize(false),
		kubeletplugin.HealthService(false), kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{
			metadatav1beta1.SchemeGroupVersion, metadatav1alpha1.SchemeGroupVersion}),
		kubeletplugin.MetadataFileOps(kubeletplugin.MetadataFileOperations{WriteFile: replace}))
	if err != nil {
		return err
	}
	defer helper.Stop()
	fmt.Println("serving")
	<-ctx.Done()
	return nil
}

// PrepareResourceClaims answers with the devices of the claims.
func (f *floor) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	return forEach(claims, func(c *resourceapi.ResourceClaim) (types.UID, kubeletplugin.PrepareResult) {
		name := "all"
		if f.safe {
			name = string(c.UID)
			if err := f.keep(name); err != nil {
				return c.UID, kubeletplugin.PrepareResult{Err: err}
			}
		}
		var devices []kubeletplugin.Device
		for _, r := range c.Status.Allocation.Devices.Results {
			devices = append(devices, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool,
				DeviceName: r.Device, CDIDeviceIDs: []string{f.driver + "/gpu=" + name},
				Metadata: &kubeletplugin.DeviceMetadata{}})
		}
		return c.UID, kubeletplugin.PrepareResult{Devices: devices}
	}), nil
}

// UnprepareResourceClaims forgets the claims.
func (f *floor) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	return forEach(claims, func(c kubeletplugin.NamespacedObject) (types.UID, error) {
		if !f.safe {
			return c.UID, nil
		}
		if err := os.Remove(filepath.Join(f.dir, string(c.UID))); err != nil {
			return c.UID, err
		}
		if err := syncDir(f.dir); err != nil {
			return c.UID, err
		}
		return c.UID, f.cdi.RemoveSpec(f.file(string(c.UID)))
	}), nil
}

// WatchHealthStatus is not called.
func (f *floor) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// HandleError ends the program: a floor with errors measures nothing.
func (f *floor) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message, err)
	os.Exit(1)
}

// keep writes the record and the CDI file of a claim.
func (f *floor) keep(name string) error {
	record := filepath.Join(f.dir, name)
	if err := renameio.WriteFile(record, make([]byte, recordSize), 0o600, renameio.WithTempDir(f.dir)); err != nil {
		return err
	}
	if err := syncDir(f.dir); err != nil {
		return err
	}
	return f.write(name)
}

// write writes the CDI file with the edits as the device of that name.
func (f *floor) write(name string) error {
	return f.cdi.WriteSpec(&cdispecs.Spec{Version: cdispecs.CurrentVersion, Kind: f.driver + "/gpu",
		Devices: []cdispecs.Device{{Name: name, ContainerEdits: f.edits}}}, f.file(name))
}

func (f *floor) file(name string) string {
	return strings.ReplaceAll(f.driver, ".", "-") + "-" + name + ".json"
}

// forEach calls do for all claims in parallel.
func forEach[C, R any](claims []C, do func(C) (types.UID, R)) map[types.UID]R {
	var mu sync.Mutex
	var all sync.WaitGroup
	results := map[types.UID]R{}
	for _, c := range claims {
		all.Go(func() {
			uid, result := do(c)
			mu.Lock()
			defer mu.Unlock()
			results[uid] = result
		})
	}
	all.Wait()
	return results
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// replace replaces a file atomically and without fsync, as the driver writes metadata.
func replace(name string, data []byte, perm os.FileMode) error {
	temporary := name + ".tmp"
	if err := os.WriteFile(temporary, data, perm); err != nil {
		return err
	}
	return os.Rename(temporary, name)
}
