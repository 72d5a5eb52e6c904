// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// unrelatedAge is how long a pod counts as one without a claim of this driver.
const unrelatedAge = 10 * time.Minute

// podCache caches data of pods that the kubelet does not report: UIDs, and which requests of a claim each container
// uses. Both are immutable, so each pod is read once from the API server, and only when needed.
type podCache struct {
	client    kubernetes.Interface
	known     map[podKey]knownPod
	unrelated map[types.UID]time.Time // since when
}

// podKey identifies a pod by what the kubelet reports. Pods of one name usually differ in their claims.
type podKey struct {
	namespace, name string
	claims          string // UIDs
}

// knownPod is a cached pod. The zero value means that the API server no longer has it.
type knownPod struct {
	uid   types.UID
	users map[string][]sharing.User // by claim
}

// uses reports whether the container uses the request of an allocated device.
func (p knownPod) uses(container string, h holding) bool {
	return slices.ContainsFunc(p.users[h.claim.Name], func(u sharing.User) bool {
		return u.Name == container && u.Uses(h.Request)
	})
}

// keep removes all other pods from the cache.
func (c *podCache) keep(pods []listedPod) {
	known := map[podKey]knownPod{}
	for _, p := range pods {
		if pod, ok := c.known[p.podKey]; ok {
			known[p.podKey] = pod
		}
	}
	c.known = known
	for uid, since := range c.unrelated {
		if time.Since(since) >= unrelatedAge {
			delete(c.unrelated, uid)
		}
	}
}

// get returns the pod from the cache or the API server.
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
		pod = knownPod{uid: found.UID, users: map[string][]sharing.User{}}
		for _, container := range p.containers {
			for _, h := range container.held {
				pod.users[h.claim.Name] = sharing.Users(found, h.claim.Name)
			}
		}
	}
	if c.known == nil {
		c.known = map[podKey]knownPod{}
	}
	c.known[p.podKey] = pod
	return pod, nil
}

// find returns the pod with that UID, if it is one of pods.
func (c *podCache) find(ctx context.Context, uid types.UID, pods []listedPod) (listedPod, bool, error) {
	found, ok, err := match(ctx, uid, pods, c.get)
	if _, unrelated := c.unrelated[uid]; ok || unrelated || err != nil {
		return found, ok, err
	}
	// A cached pod may have been replaced by one with the same name and claims.
	found, ok, err = match(ctx, uid, pods, c.fetch)
	if !ok && err == nil {
		if c.unrelated == nil {
			c.unrelated = map[types.UID]time.Time{}
		}
		c.unrelated[uid] = time.Now()
	}
	return found, ok, err
}

func match(ctx context.Context, uid types.UID, pods []listedPod, ask func(context.Context, listedPod) (knownPod,
	error)) (listedPod, bool, error) {
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
