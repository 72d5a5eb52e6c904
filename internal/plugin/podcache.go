// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
)

// strangerAge is how long a pod is taken for one that has no claim of this driver.
const strangerAge = 10 * time.Minute

// podCache knows what the kubelet does not tell about pods: their UIDs, and which requests of a claim each container uses. Neither
// changes, so the API server is asked about a pod once, and only when somebody wants to know.
type podCache struct {
	client    kubernetes.Interface
	known     map[podKey]knownPod
	strangers map[types.UID]time.Time // since when
}

// podKey tells pods of one name apart as far as the kubelet does: most have claims of their own.
type podKey struct {
	namespace, name string
	claims          string // UIDs
}

// knownPod is what is known of a pod. The zero value is one that the API server does not know any more.
type knownPod struct {
	uid   types.UID
	users map[string][]claims.Container // by claim
}

// uses says whether the container uses the request for which a device is held.
func (p knownPod) uses(container string, h holding) bool {
	return slices.ContainsFunc(p.users[h.claim.Name], func(c claims.Container) bool {
		return c.Name == container && (len(c.Requests) == 0 || slices.Contains(c.Requests, mainRequest(h.Request)))
	})
}

// keep forgets all other pods.
func (c *podCache) keep(pods []listedPod) {
	known := map[podKey]knownPod{}
	for _, p := range pods {
		if pod, ok := c.known[p.podKey]; ok {
			known[p.podKey] = pod
		}
	}
	c.known = known
	for uid, since := range c.strangers {
		if time.Since(since) >= strangerAge {
			delete(c.strangers, uid)
		}
	}
}

// get is the pod of that name.
func (c *podCache) get(ctx context.Context, p listedPod) (knownPod, error) {
	if pod, ok := c.known[p.podKey]; ok {
		return pod, nil
	}
	return c.fetch(ctx, p)
}

func (c *podCache) fetch(ctx context.Context, p listedPod) (knownPod, error) {
	found, err := c.client.CoreV1().Pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return knownPod{}, fmt.Errorf("look for pod %s/%s: %w", p.namespace, p.name, err)
	}
	var pod knownPod
	if err == nil {
		pod = knownPod{uid: found.UID, users: map[string][]claims.Container{}}
		for _, container := range p.containers {
			for _, h := range container.held {
				pod.users[h.claim.Name] = users(found, h.claim.Name)
			}
		}
	}
	if c.known == nil {
		c.known = map[podKey]knownPod{}
	}
	c.known[p.podKey] = pod
	return pod, nil
}

// find is the pod with that UID, if it is one of those given.
func (c *podCache) find(ctx context.Context, uid types.UID, pods []listedPod) (listedPod, bool, error) {
	found, ok, err := match(ctx, uid, pods, c.get)
	if _, stranger := c.strangers[uid]; ok || stranger || err != nil {
		return found, ok, err
	}
	// One may have been replaced by another of the same name and with the same claims since it was asked about.
	found, ok, err = match(ctx, uid, pods, c.fetch)
	if !ok && err == nil {
		if c.strangers == nil {
			c.strangers = map[types.UID]time.Time{}
		}
		c.strangers[uid] = time.Now()
	}
	return found, ok, err
}

func match(ctx context.Context, uid types.UID, pods []listedPod, ask func(context.Context, listedPod) (knownPod, error)) (listedPod, bool, error) {
	for _, p := range pods {
		pod, err := ask(ctx, p)
		if err != nil {
			return listedPod{}, false, err
		}
		if pod.uid == uid {
			return p, true, nil
		}
	}
	return listedPod{}, false, nil
}
