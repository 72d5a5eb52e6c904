// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// The timeout of the lock's client is not that of all clients: it would end watches.
func TestTheLockHasItsOwnTimeout(t *testing.T) {
	config := &rest.Config{Host: "https://api.example.com", UserAgent: "controller"}
	if _, err := (Options{REST: config, Namespace: "gpus", Name: "controller"}).lock(nil); err != nil {
		t.Fatal(err)
	}
	if config.Timeout != 0 || config.UserAgent != "controller" {
		t.Errorf("got the timeout %s and the user agent %s for all clients", config.Timeout, config.UserAgent)
	}
}

// Uninstalling deletes the webhook configuration, and the garbage collector what it owns. A replica that still runs
// creates no lease that stays.
func TestTheLeaseIsDeletedWithTheDriver(t *testing.T) {
	const ns, name = "gpus", "controller"
	webhooks := &admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name,
		UID: "u"}}
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "replica", LeaseDurationSeconds: 15,
		RenewTime: metav1.NewTime(time.Now())}
	for _, test := range []struct {
		name  string
		lease *coordinationv1.Lease // which is there
	}{
		{"created", nil},
		{"somebody else created it", &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			reads := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(webhooks.DeepCopy()).Build()
			cluster := kubefake.NewClientset()
			leases := cluster.CoordinationV1().Leases(ns)
			if test.lease != nil {
				if _, err := leases.Create(t.Context(), test.lease, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
				Client: ownedLeases{leases, reads, name}}
			take := func() error {
				_, _, err := lock.Get(t.Context())
				if apierrors.IsNotFound(err) {
					return lock.Create(t.Context(), record)
				}
				return lock.Update(t.Context(), record)
			}
			for range 2 {
				if err := take(); err != nil {
					t.Fatal(err)
				}
				got, err := leases.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "u" ||
					*got.Spec.HolderIdentity != record.HolderIdentity {
					t.Errorf("got %+v, want the webhooks as owner and the replica as holder", got)
				}
			}
			if err := reads.Delete(t.Context(), webhooks.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			if err := take(); err != nil {
				t.Errorf("a lease with its owner is renewed without reading it: got %v", err)
			}
			if err := leases.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil { // the garbage collector
				t.Fatal(err)
			}
			if err := take(); err == nil {
				t.Error("got a lease, want none: nothing would delete it")
			}
		})
	}
}
