// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// eachClaim passes a call to prepare several claims on as one call for each, all at once. kubeletplugin would fetch the claims one
// after the other, and fail all of them when one cannot be fetched.
func eachClaim(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	prepare, ok := request.(*drapb.NodePrepareResourcesRequest)
	if !ok || len(prepare.Claims) < 2 {
		return handle(ctx, request)
	}
	answers := make([]*drapb.NodePrepareResourceResponse, len(prepare.Claims))
	var all sync.WaitGroup
	for i, claim := range prepare.Claims {
		all.Go(func() {
			answer, err := handle(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
			if err != nil {
				answers[i] = &drapb.NodePrepareResourceResponse{Error: err.Error()}
				return
			}
			answers[i] = answer.(*drapb.NodePrepareResourcesResponse).Claims[claim.Uid]
		})
	}
	all.Wait()
	together := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for i, claim := range prepare.Claims {
		together.Claims[claim.Uid] = answers[i]
	}
	return together, nil
}
