// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// QuotaVersion is the API version of GPUQuotas.
var QuotaVersion = schema.GroupVersion{Group: "resource.nvidia.com", Version: "v1beta1"}

// QuotaLabel is the label of namespaces, with the value "on", whose claims GPUQuotas limit.
const QuotaLabel = "gpu.nvidia.com/quota"

// GPUQuota limits how much of GPUs the claims of a namespace take together.
type GPUQuota struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GPUQuotaSpec   `json:"spec"`
	Status GPUQuotaStatus `json:"status,omitzero"`
}

// GPUQuotaSpec has the limits, with the keys of an Amount.
type GPUQuotaSpec struct {
	Hard corev1.ResourceList `json:"hard"`
}

// GPUQuotaStatus has what is used.
type GPUQuotaStatus struct {
	// Used has the keys of spec.hard. A key that is missing is not counted yet.
	Used corev1.ResourceList `json:"used,omitempty"`
	// Summary is for people: what is used of each limit.
	Summary string `json:"summary,omitempty"`
	// Pending are claims that were admitted and that no count has found yet. Used includes them.
	Pending []PendingClaim `json:"pending,omitempty"`
	// Enforced reports whether the namespace has the label QuotaLabel.
	Enforced bool `json:"enforced"`
	// Driver is the driver whose devices are counted.
	Driver string `json:"driver,omitempty"`
}

// PendingClaim is an admitted claim.
type PendingClaim struct {
	UID    types.UID   `json:"uid"`
	Claim  string      `json:"claim"`
	Since  metav1.Time `json:"since"`
	Amount Amount      `json:"amount"`
}

// GPUQuotaList is a list of GPUQuotas.
type GPUQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUQuota `json:"items"`
}

// AddGPUQuotas adds the types to a scheme.
func AddGPUQuotas(s *runtime.Scheme) error {
	s.AddKnownTypes(QuotaVersion, &GPUQuota{}, &GPUQuotaList{})
	metav1.AddToGroupVersion(s, QuotaVersion)
	return nil
}

// DeepCopy returns a copy.
func (q *GPUQuota) DeepCopy() *GPUQuota {
	c := *q
	q.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Hard, c.Status.Used = q.Spec.Hard.DeepCopy(), q.Status.Used.DeepCopy()
	c.Status.Pending = slices.Clone(q.Status.Pending)
	for i := range c.Status.Pending {
		c.Status.Pending[i].Amount = maps.Clone(c.Status.Pending[i].Amount)
	}
	return &c
}

// DeepCopyObject implements runtime.Object.
func (q *GPUQuota) DeepCopyObject() runtime.Object { return q.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (l *GPUQuotaList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = nil
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopy())
	}
	return &c
}

// Excess is a limit that a claim would exceed.
type Excess struct {
	Resource          corev1.ResourceName
	Asked, Used, Hard *resource.Quantity // Asked is nil if it is unknown, and Used if it is not counted yet
}

// quotaUnits say what a number of each resource is.
var quotaUnits = map[corev1.ResourceName]string{AmountMemory: "%s of GPU memory",
	AmountCores: "%s percent of a GPU's multiprocessors", AmountTFLOPS: "%s TFLOP/s", AmountGPUs: "%s GPUs or parts"}

// Text returns what a claim would take, and how much the quota has left.
func (e Excess) Text(quota string) string {
	if e.Asked == nil {
		return fmt.Sprintf("no published GPU is for it, so its %s is not known, and GPUQuota %s limits it to %s",
			e.Resource, quota, e.Hard)
	}
	left := quantity(e.Resource, max(0, e.Hard.Value()-e.Used.Value()))
	return fmt.Sprintf("it may take "+quotaUnits[e.Resource]+", and GPUQuota %s has %s of %s left", e.Asked, quota,
		left, e.Hard)
}

// Exceeded returns the limits that another amount would exceed, sorted by resource. What is unknown of it exceeds each
// limit.
func (q *GPUQuota) Exceeded(more Amount) []Excess {
	var all []Excess
	for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		hard := q.Spec.Hard[name]
		used, counted := q.Status.Used[name]
		asked, known := more[name]
		e := Excess{Resource: name, Hard: &hard}
		if counted {
			e.Used = &used
		}
		if known {
			e.Asked = quantity(name, asked)
		}
		if !known || asked > 0 && (!counted || asked > hard.Value()-used.Value()) {
			all = append(all, e)
		}
	}
	return all
}

// Use sets what is used. A key that the amount lacks is not counted then.
func (q *GPUQuota) Use(amount Amount) {
	q.Status.Used = corev1.ResourceList{}
	for name := range q.Spec.Hard {
		if n, counted := amount[name]; counted {
			q.Status.Used[name] = *quantity(name, n)
		}
	}
}

// Used returns what is used, as an amount.
func (q *GPUQuota) Used() Amount {
	all := Amount{}
	for name, used := range q.Status.Used {
		all[name] = used.Value()
	}
	return all
}

func quantity(name corev1.ResourceName, n int64) *resource.Quantity {
	if name == AmountMemory {
		return resource.NewQuantity(n, resource.BinarySI)
	}
	return resource.NewQuantity(n, resource.DecimalSI)
}
