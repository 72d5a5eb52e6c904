// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// Uninstalling deletes the webhook configuration, and the garbage collector what it owns.
func TestTheLeaseIsDeletedWithTheDriver(t *testing.T) {
	key := client.ObjectKey{Namespace: "gpus", Name: "controller"}
	holder := "replica"
	cluster := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		&admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: "u"}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}},
	).Build()
	o := leaseOwner{cluster, key, key.Name}
	var versions []string
	for range 2 {
		if err := o.own(t.Context()); err != nil {
			t.Fatal(err)
		}
		var lease coordinationv1.Lease
		if err := cluster.Get(t.Context(), key, &lease); err != nil {
			t.Fatal(err)
		}
		if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != "u" ||
			*lease.Spec.HolderIdentity != holder {
			t.Errorf("got %+v, want the webhooks as owner and the same holder", lease)
		}
		versions = append(versions, lease.ResourceVersion)
	}
	if versions[0] != versions[1] {
		t.Errorf("got versions %v, want no second write", versions)
	}
}
