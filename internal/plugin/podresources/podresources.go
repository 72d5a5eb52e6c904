// SPDX-License-Identifier: Apache-2.0

// Package podresources is a client of the kubelet's pod resources API.
package podresources

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxAnswer is the maximum size of a response in bytes, as in the kubelet's own client.
const maxAnswer = 16 << 20

// List returns the containers of all pods that have not ended. It includes init containers only if they are sidecars.
func List(ctx context.Context, socket string) ([]*podresources.PodResources, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Clean(socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	request := &podresources.ListPodResourcesRequest{}
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, request, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for its containers: %w", err)
	}
	return list.PodResources, nil
}

// CDINames returns the CDI devices of all claims that the container uses, without the duplicates of the kubelet. For a
// claim with several requests, the kubelet lists the devices of all of them, whichever the container uses.
func CDINames(c *podresources.ContainerResources) []string {
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
