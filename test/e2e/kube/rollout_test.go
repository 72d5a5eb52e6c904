// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestWaitRollout(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "x", Generation: 2}
	plugin := func(status appsv1.DaemonSetStatus) client.Object {
		return &appsv1.DaemonSet{ObjectMeta: meta, Status: status, Spec: appsv1.DaemonSetSpec{
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType}}}
	}
	supervisor := &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}}}
	controller := func(status appsv1.DeploymentStatus) client.Object {
		return &appsv1.Deployment{ObjectMeta: meta, Status: status,
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}}
	}
	for _, row := range []struct {
		name   string
		object client.Object
		want   string // in the error; empty: it is done
	}{
		{"all plugins are new and ready", plugin(appsv1.DaemonSetStatus{ObservedGeneration: 2,
			DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberReady: 3}), ""},
		{"nobody has seen the change yet", plugin(appsv1.DaemonSetStatus{ObservedGeneration: 1,
			DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberReady: 3}), "x: 3 of 3"},
		{"an old plugin is left", plugin(appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 3,
			UpdatedNumberScheduled: 2, NumberReady: 3}), "x: 2 of 3 pods are new, 3 ready"},
		{"a supervisor is replaced by hand", supervisor, ""},
		{"all controllers are new and ready", controller(appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2,
			UpdatedReplicas: 2, ReadyReplicas: 2}), ""},
		{"an old controller is left", controller(appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3,
			UpdatedReplicas: 2, ReadyReplicas: 2}), "x: 2 of 2 pods are new, 2 ready, 3 in all"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Cluster{Client: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(row.object).Build()}
				err := c.WaitRollout(t.Context(), time.Minute, "ns")
				if row.want == "" && err != nil || row.want != "" && (!errors.Is(err, ErrStuck) ||
					!strings.Contains(err.Error(), row.want)) {
					t.Errorf("got %v, want %q", err, row.want)
				}
			})
		})
	}
}
