// SPDX-License-Identifier: Apache-2.0

// Package bill counts who has the GPUs of the cluster: each second of each GPU is in one state, by namespace, by owner
// of the claim, and by model. The leader looks at the view every few seconds. It exports only what it has stored in a
// ConfigMap, from which the next leader goes on: so no counter ever becomes less, and no second counts twice.
package bill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

const (
	period  = 5 * time.Second  // from one look to the next
	storing = 30 * time.Second // from one write to the next
	// ending is how long the last write of a leader may take.
	ending = 5 * time.Second
)

// The keys of the ConfigMap.
const (
	stateKey    = "seconds.json.gz" // binary
	pricesKey   = "prices"          // JSON: of an hour of a GPU, by model
	currencyKey = "currency"
)

// OtherModels is the model whose price is that of models without one.
const OtherModels = "*"

// biller counts on the leader. It is not safe for concurrent use.
type biller struct {
	*feature.Controller
	name    types.NamespacedName // of the ConfigMap
	account *account             // nil: it is to be read
	stored  *corev1.ConfigMap    // as read or written last
	nodes   map[string]time.Time // without published GPUs, when they were last there
	told    atomic.Pointer[Told]
}

// Add makes the leader count, with that ConfigMap.
func Add(c *feature.Controller, name types.NamespacedName) error {
	b := &biller{Controller: c, name: name}
	return errors.Join(ctrlmetrics.Registry.Register(Collector{b.told.Load}), c.Manager.Add(b))
}

// Start counts until ctx ends.
func (b *biller) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("bill"))
	b.Rounds(ctx, period, "count GPU seconds", "GPU seconds are not stored, will be tried again",
		func(started time.Time) error { return b.round(ctx, started) })
	if b.account == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ending)
	defer cancel()
	if err := b.store(ctx); err != nil { // the next leader counts the time since the last write
		log.FromContext(ctx).Error(err, "The last GPU seconds of this leader are not stored")
	}
	return nil
}

// round looks, and stores what was counted if it is time.
func (b *biller) round(ctx context.Context, now time.Time) error {
	if b.account == nil {
		if err := b.read(ctx, now); err != nil {
			return err
		}
	}
	b.account.look(b.View, world{b.short, func(node string) bool { return b.exists(ctx, node, now) }}, now)
	if told := b.told.Load(); told != nil && now.Sub(told.At) < storing {
		return nil
	}
	return b.store(ctx)
}

func (b *biller) short(node string) string {
	if b.Short == nil {
		return ""
	}
	return b.Short(node)
}

// nodesAge is how old an answer about a node may be: if all plugins are away, there are thousands to ask for.
const nodesAge = time.Minute

// exists reports whether the node is there, or nobody knows.
func (b *biller) exists(ctx context.Context, node string, now time.Time) bool {
	if now.Sub(b.nodes[node]) < nodesAge {
		return true
	}
	var of metav1.PartialObjectMetadata
	of.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	if apierrors.IsNotFound(b.Direct.Get(ctx, types.NamespacedName{Name: node}, &of)) {
		delete(b.nodes, node)
		return false
	}
	if b.nodes == nil {
		b.nodes = map[string]time.Time{}
	}
	b.nodes[node] = now
	return true
}

// read goes on where the last leader has stopped.
func (b *biller) read(ctx context.Context, now time.Time) error {
	var stored corev1.ConfigMap
	if err := b.Direct.Get(ctx, b.name, &stored); err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", b.name, err)
	}
	state, err := decode(stored.BinaryData[stateKey])
	if err != nil {
		return fmt.Errorf("ConfigMap %s: binaryData[%s]: %w; without this key, counting starts anew", b.name, stateKey,
			err)
	}
	b.stored, b.account = &stored, resume(state, now)
	return nil
}

// store writes the account, and exports what is written. If somebody else has written, such as new prices, the account
// is read again: so of two leaders, only one counts a second.
func (b *biller) store(ctx context.Context) error {
	state := b.account.state()
	text, err := state.encode()
	if err != nil {
		return err
	}
	next := b.stored.DeepCopy()
	if next.BinaryData == nil {
		next.BinaryData = map[string][]byte{}
	}
	next.BinaryData[stateKey] = text
	if err := b.Direct.Update(ctx, next); err != nil {
		if !apierrors.IsRequestEntityTooLargeError(err) && !apierrors.IsInvalid(err) {
			b.account = nil // the write may have succeeded
		}
		return fmt.Errorf("write ConfigMap %s: %w", b.name, err)
	}
	b.stored = next
	told := &Told{State: state, Currency: next.Data[currencyKey]}
	b.told.Store(told)
	if err := json.Unmarshal([]byte(cmp.Or(next.Data[pricesKey], "{}")), &told.Prices); err != nil {
		return fmt.Errorf(`ConfigMap %s: data[%s]: %w; it wants JSON, prices by model: {"Tesla T4": 0.35}`, b.name,
			pricesKey, err)
	}
	return nil
}

// Told is what is exported.
type Told struct {
	State
	Prices   map[string]float64
	Currency string
}

// price returns the price of an hour of a GPU.
func (t *Told) price(model string) (float64, bool) {
	if p, ok := t.Prices[model]; ok {
		return p, true
	}
	p, ok := t.Prices[OtherModels]
	return p, ok
}

var (
	secondsDesc = prometheus.NewDesc("gpu_dra_cluster_gpu_seconds_total",
		"Seconds of all GPUs, each in one state. A share or partition counts as its part of the GPU's memory, and "+
			"what is left of the GPU in a state of its own: the states of a GPU add up to 1 each second. Before a "+
			"sum, take the maximum over the replicas of the controller.",
		[]string{"model", "state", "reason", "device", "namespace"}, nil)
	ownerDesc = prometheus.NewDesc("gpu_dra_cluster_owner_gpu_seconds_total",
		"Those of these seconds in which claims held something, by the owner of the claim: its pod, or the claim "+
			"itself if pods share it. Two hours after its end an owner is left out.",
		[]string{"model", "state", "device", "namespace", "owner"}, nil)
	priceDesc = prometheus.NewDesc("gpu_dra_cluster_gpu_price",
		"The price of an hour of a GPU, as in the chart's value controller.bill.prices. There is none for a model "+
			"without one.", []string{"model", "currency"}, nil)
)

// Collector exports what the leader has stored.
type Collector struct{ Told func() *Told }

// Describe implements prometheus.Collector.
func (Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- secondsDesc
	ch <- ownerDesc
	ch <- priceDesc
}

// Collect implements prometheus.Collector. It sends nothing before the first write.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	t := c.Told()
	if t == nil {
		return
	}
	models := map[string]bool{}
	for _, r := range t.Totals {
		models[r.Model] = true
		ch <- prometheus.MustNewConstMetric(secondsDesc, prometheus.CounterValue, r.Seconds, r.Model, r.State, r.Reason,
			r.Device, r.Namespace)
	}
	owners := map[Key]float64{} // the reason is no label here
	for _, r := range t.Owners {
		r.Reason = ""
		owners[r.Key] += r.Seconds
	}
	for k, seconds := range owners {
		ch <- prometheus.MustNewConstMetric(ownerDesc, prometheus.CounterValue, seconds, k.Model, k.State, k.Device,
			k.Namespace, k.Owner)
	}
	for model := range models {
		if price, ok := t.price(model); ok {
			ch <- prometheus.MustNewConstMetric(priceDesc, prometheus.GaugeValue, price, model, t.Currency)
		}
	}
}
