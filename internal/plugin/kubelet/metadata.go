// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// metadataWriter writes device metadata without fsync; kubeletplugin would sync twice per claim. Every Prepare writes
// these files again, and after a power failure the kubelet prepares a claim before it starts a container with it. So
// nothing reads a file that a power failure has damaged.
type metadataWriter struct {
	driver string
	files  kubeletplugin.MetadataFileOperations

	mu   sync.Mutex
	last error // why metadata could not be written
}

func (m *metadataWriter) write(name string, data []byte, perm os.FileMode) error {
	return m.note(m.files.WriteFile(name, data, perm))
}

func (m *metadataWriter) mkdirAll(path string, perm os.FileMode) error {
	return m.note(m.files.MkdirAll(path, perm))
}

func (m *metadataWriter) note(err error) error {
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last = err
	}
	return err
}

// require makes the answer for a claim an error if its metadata could not be written, as on a full disk. kubeletplugin
// only logs that. The container would have no metadata, and by the mount of its metadata it is found when the claim is
// to be released.
func (m *metadataWriter) require(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, request)
	prepared, ok := answer.(*drapb.NodePrepareResourcesResponse)
	if err != nil || !ok {
		return answer, err
	}
	for uid, claim := range prepared.Claims {
		if claim.Error == "" && !m.has(uid, claim.Devices) {
			m.mu.Lock()
			text := fmt.Sprintf("write the device metadata of claim %s: %v", uid, m.last)
			m.mu.Unlock()
			prepared.Claims[uid] = &drapb.NodePrepareResourceResponse{Error: text}
		}
	}
	return prepared, nil
}

// has reports whether the devices come with the metadata of each of their requests.
func (m *metadataWriter) has(claim string, devices []*drapb.Device) bool {
	var names []string
	for _, d := range devices {
		names = append(names, d.CdiDeviceIds...)
	}
	return !slices.ContainsFunc(devices, func(d *drapb.Device) bool {
		return slices.ContainsFunc(d.RequestNames, func(request string) bool {
			return !slices.Contains(names, m.driver+"/metadata="+claim+"_"+request)
		})
	})
}
