// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// FuzzManifest reads manifests of fits that nobody has validated: nothing panics.
func FuzzManifest(f *testing.F) {
	for _, text := range []string{"", "---\n---", "a: &a [*a]", "{",
		"apiVersion: v1\nkind: Pod\nspec: {containers: [{}]}",
		"apiVersion: v1\nkind: List\nitems: [{}, 5, null, {apiVersion: v1, kind: List, items: [{kind: Pod}]}]",
		"apiVersion: apps/v1\nkind: Deployment\nspec: {template: {spec: {containers: [{name: '{{ .Values.name }}'}]}}}",
		"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nspec: {devices: {requests: [{}]}}",
		"apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nspec: {spec: {devices: {requests: [{name: a, " +
			"firstAvailable: [{name: b, count: 4611686018427387904}]}]}}}",
		"apiVersion: resource.k8s.io/v1alpha3\nkind: ResourceClaim", "kind: 5", "metadata: 5\nspec: {template: 6}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := &plugin{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(text)}}
		m, err := p.manifest("-", "ns")
		if err == nil && len(m.Pods)+len(m.Claims)+len(m.Templates) == 0 {
			t.Error("no objects and no error")
		}
	})
}

// FuzzPage sends requests to the page: nothing panics, and nothing but the log-in is served without the token.
func FuzzPage(f *testing.F) {
	for _, target := range []string{"/", "/?token=secret", "/?token=secret&token=x", "/why?name=a&namespace=b",
		"/events",
		"/../page.js", "/%2e%2e/", "//", "/?token=%zz"} {
		f.Add(target, "127.0.0.1:80", "secret")
		f.Add(target, "evil.example.com", "")
	}
	of := newReasons(func(context.Context) *cluster.Snapshot { return &cluster.Snapshot{Unread: map[string]error{}} })
	f.Add("*", "127.0.0.1", `s"ecret`) // net/http drops the quotation mark
	page := newPageServer(newBoard(filter{}, ""), of, nil, "127.0.0.1:80", "secret")
	f.Fuzz(func(t *testing.T, target, host, cookie string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		ctx, stop := context.WithCancel(t.Context())
		stop() // streams end
		for _, path := range []string{u.Path, page.path + u.Path} {
			r := (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: u.RawQuery}, Host: host,
				Header: http.Header{}}).WithContext(ctx)
			r.AddCookie(&http.Cookie{Name: cookieName, Value: cookie})
			w := httptest.NewRecorder()
			page.ServeHTTP(w, r)
			sent, err := r.Cookie(cookieName)
			known := err == nil && sent.Value == "secret"
			if w.Code < 400 && w.Code != http.StatusSeeOther && !known {
				t.Errorf("%s from %s with cookie %q: got %d", path, host, cookie, w.Code)
			}
		}
	})
}
