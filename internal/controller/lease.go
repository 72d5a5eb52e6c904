// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/gpudra/gpu-dra-driver/internal/controller/certificate"
)

// leaseOwner makes the webhook configuration own the leader's lease, so that the garbage collector deletes the lease
// when the driver is uninstalled.
type leaseOwner struct {
	client        client.Client // without a cache
	lease         client.ObjectKey
	configuration string
}

var _ manager.Runnable = leaseOwner{}

// Start checks the lease every minute: somebody may delete it, and the leader creates it again without an owner.
func (o leaseOwner) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := o.own(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Lease without an owner: it stays when the driver is uninstalled")
		}
	}, time.Minute)
	return nil
}

// own sets the owner unless it is set.
func (o leaseOwner) own(ctx context.Context) error {
	owner, err := certificate.Owner(ctx, o.client, o.configuration)
	if err != nil {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the leader renews it every two seconds
		var lease coordinationv1.Lease
		if err := o.client.Get(ctx, o.lease, &lease); err != nil {
			return fmt.Errorf("read lease %s: %w", o.lease, err)
		}
		owned := func(r metav1.OwnerReference) bool { return r.UID == owner.UID }
		if slices.ContainsFunc(lease.OwnerReferences, owned) {
			return nil
		}
		lease.OwnerReferences = []metav1.OwnerReference{owner}
		return o.client.Update(ctx, &lease)
	})
}
