// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/internal/controller/certificate"
)

// lock returns the lock of the leader: a lease that the webhook configuration owns.
func (o Options) lock(reads client.Client) (resourcelock.Interface, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	config := rest.AddUserAgent(rest.CopyConfig(o.REST), "leader-election")
	config.Timeout = 5 * time.Second // half of the deadline for renewing it: one slow request does not end the leader
	leases, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name},
		Client:     ownedLeases{leases.Leases(o.Namespace), reads, o.Name},
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}, nil
}

// ownedLeases writes leases with the webhook configuration as owner: the garbage collector deletes them when the driver
// is uninstalled. A replica that still runs then creates no lease: nothing would delete one without an owner.
type ownedLeases struct {
	coordinationclient.LeaseInterface // of one namespace
	reads                             client.Client
	configuration                     string
}

// Leases returns those of the one namespace.
func (l ownedLeases) Leases(string) coordinationclient.LeaseInterface { return l }

// Create creates a lease with the owner.
func (l ownedLeases) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (
	*coordinationv1.Lease, error) {
	if err := l.own(ctx, lease); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Create(ctx, lease, opts)
}

// Update renews a lease. One that somebody else created gets the owner.
func (l ownedLeases) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (
	*coordinationv1.Lease, error) {
	if err := l.own(ctx, lease); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Update(ctx, lease, opts)
}

// own sets the owner unless there is one.
func (l ownedLeases) own(ctx context.Context, lease *coordinationv1.Lease) error {
	if len(lease.OwnerReferences) > 0 {
		return nil
	}
	owner, err := certificate.Owner(ctx, l.reads, l.configuration)
	if err != nil {
		return fmt.Errorf("no lease without an owner, it would stay when the driver is uninstalled: %w", err)
	}
	lease.OwnerReferences = []metav1.OwnerReference{owner}
	return nil
}
