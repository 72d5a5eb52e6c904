// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxPodResources is how many bytes the kubelet may answer, as its own client has it.
const maxPodResources = 16 << 20

// podResources asks the kubelet, on its socket, for the containers of all pods that have not ended, and for what they have. Init
// containers are not among them, unless they go on beside the others.
func podResources(ctx context.Context, socket string) ([]*podresources.PodResources, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{}, grpc.MaxCallRecvMsgSize(maxPodResources))
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for its containers: %w", err)
	}
	return list.PodResources, nil
}

// cdiNames are the CDI devices of all claims that the container uses, each once: the kubelet repeats some. For a claim with several
// requests it lists those of all, whichever the container names.
func cdiNames(c *podresources.ContainerResources) []string {
	var names []string
	for _, claim := range c.DynamicResources {
		for _, resource := range claim.ClaimResources {
			for _, device := range resource.CdiDevices {
				names = append(names, device.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+filepath.Clean(socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
}
