// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
)

// response asks the page and does not follow redirects.
func (s *pageServer) response(t *testing.T, method, path, host, cookie string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		request.Host = host
	}
	if cookie != "" {
		request.AddCookie(&http.Cookie{Name: cookieName, Value: cookie})
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func TestPageAccess(t *testing.T) {
	page := serve(t, pageSnapshot(t))
	_, port, _ := strings.Cut(page.address, ":")
	for _, row := range []struct {
		name, method, path, host, cookie string
		want                             int
	}{
		{"without a token", "GET", "/", "", "", http.StatusForbidden},
		{"with a wrong token", "GET", "/?token=wrong", "", "", http.StatusForbidden},
		{"with an empty token", "GET", "/?token=", "", "", http.StatusForbidden},
		{"with the token", "GET", "/?token=secret", "", "", http.StatusSeeOther},
		{"the token logs in and does nothing else", "GET", page.path + "/events?token=secret", "", "",
			http.StatusForbidden},
		{"with the cookie", "GET", page.path + "/", "", "secret", http.StatusOK},
		{"with a wrong cookie", "GET", page.path + "/", "", "secre", http.StatusForbidden},
		{"with the cookie in another folder", "GET", "/", "", "secret", http.StatusNotFound},
		{"files need the cookie", "GET", page.path + "/page.js", "", "", http.StatusForbidden},
		{"a file", "GET", page.path + "/page.js", "", "secret", http.StatusOK},
		{"no other files", "GET", page.path + "/uiserver.go", "", "secret", http.StatusNotFound},
		{"events need the cookie", "GET", page.path + "/events", "", "", http.StatusForbidden},
		{"reasons need the cookie", "GET", page.path + "/why?namespace=ml&name=waiting", "", "", http.StatusForbidden},
		{"a reason", "GET", page.path + "/why?namespace=ml&name=waiting", "", "secret", http.StatusOK},
		{"a reason of no claim", "GET", page.path + "/why?namespace=ml&name=gone", "", "secret", http.StatusNotFound},
		{"use needs the cookie", "GET", page.path + "/use?node=a", "", "", http.StatusForbidden},
		{"use", "GET", page.path + "/use?node=a", "", "secret", http.StatusOK},
		{"nothing can be changed", "POST", page.path + "/", "", "secret", http.StatusMethodNotAllowed},
		{"another host", "GET", page.path + "/", "evil.example:" + port, "secret", http.StatusMisdirectedRequest},
		{"another host with the token", "GET", "/?token=secret", "evil.example:" + port, "",
			http.StatusMisdirectedRequest},
		{"another port", "GET", page.path + "/", "127.0.0.1:1", "secret", http.StatusMisdirectedRequest},
	} {
		t.Run(row.name, func(t *testing.T) {
			response := page.response(t, row.method, row.path, row.host, row.cookie) //nolint:bodyclose // it closes it
			if response.StatusCode != row.want {
				t.Errorf("got %s, want %d", response.Status, row.want)
			}
			if got := response.Header.Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none';") ||
				strings.Contains(got, "unsafe") {
				t.Errorf("got the policy %q", got)
			}
			if got := response.Header.Get("Location"); strings.Contains(got, "secret") {
				t.Errorf("the redirect to %q keeps the token", got)
			}
		})
	}
	cookies := page.response(t, "GET", "/?token=secret", "", "").Cookies() //nolint:bodyclose // it closes it
	if len(cookies) != 1 || cookies[0].Path != page.path+"/" || !cookies[0].HttpOnly ||
		cookies[0].SameSite != http.SameSiteLaxMode {
		t.Errorf("got cookies %v", cookies)
	}
}

// TestPageOnPort80: browsers leave out the port in the header Host.
func TestPageOnPort80(t *testing.T) {
	page := newPageServer(newBoard(filter{}, ""), nil, nil, "127.0.0.1:80", "secret")
	for host, want := range map[string]int{"127.0.0.1": http.StatusSeeOther, "127.0.0.1:80": http.StatusSeeOther,
		"evil.example": http.StatusMisdirectedRequest, "127.0.0.1:8080": http.StatusMisdirectedRequest} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "http://"+host+"/?token=secret", nil))
		if w.Code != want {
			t.Errorf("host %s: got %d, want %d", host, w.Code, want)
		}
	}
}

// TestPageFiles: the policy forbids inline scripts and styles, and the page asks nobody else.
func TestPageFiles(t *testing.T) {
	files, err := pageFiles.ReadDir("page")
	if err != nil || len(files) != 3 {
		t.Fatalf("got %v, %v, want three files", files, err)
	}
	size := 0
	bad := regexp.MustCompile(`<script>|<script [^>]*></|<style|\son[a-z]+=|\sstyle=|https?://|innerHTML|\beval\(`)
	for _, file := range files {
		text, err := pageFiles.ReadFile("page/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		size += len(text)
		without := strings.ReplaceAll(string(text), `<script src="page.js" type="module"></script>`, "")
		if found := bad.FindString(without); found != "" {
			t.Errorf("%s has %q", file.Name(), found)
		}
	}
	if size > 60_000 {
		t.Errorf("the page has %d bytes, more than 60,000", size)
	}
}

// messages reads the events of the page.
func (s *pageServer) messages(t *testing.T) func() pageMessage {
	t.Helper()
	response := s.response(t, "GET", s.path+"/events", "", s.token) //nolint:bodyclose // it closes it
	lines := bufio.NewReader(response.Body)
	return func() pageMessage {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			var m pageMessage
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				t.Fatal(err)
			}
			return m
		}
	}
}

func TestEvents(t *testing.T) {
	s := pageSnapshot(t)
	page := serve(t, s)
	next := page.messages(t)
	first := next()
	if !first.Full || len(first.Nodes) != 2 || len(first.Pending) != 2 || len(first.Unread) != 0 {
		t.Errorf("got first %+v, want two nodes, a pending claim and a pending pod", first)
	}
	changed := *s
	unready := s.Claims[0].DeepCopy()
	unready.Status.Allocation.Devices.Results[0].BindingConditions = []string{"Ready"}
	changed.Claims = append([]*resourceapi.ResourceClaim{unready}, s.Claims[1:]...)
	if got := pending(&changed); len(got) != 3 {
		t.Errorf("with a claim whose device is not ready: got pending %v, want one more", got)
	}
	changed.Claims = s.Claims[2:] // nothing of node a is held any more
	if err := page.board.update(&changed); err != nil {
		t.Fatal(err)
	}
	second := next()
	if second.Full || len(second.Nodes) != 1 || strings.Contains(string(second.Nodes["a"]), "holders") {
		t.Errorf("got %+v, want node a without holders", second)
	}
	changed.Slices = s.Slices[:2]
	if err := page.board.update(&changed); err != nil {
		t.Fatal(err)
	}
	if third := next(); third.Full || len(third.Nodes) != 1 || string(third.Nodes["b"]) != "null" {
		t.Errorf("got %+v, want that node b is gone", third)
	}
}

// TestIncompletePoolOnPage: no claim gets the GPUs that the page shows.
func TestIncompletePoolOnPage(t *testing.T) {
	s := pageSnapshot(t)
	s.Slices[0].Spec.Pool.ResourceSliceCount = 3
	m := serve(t, s).messages(t)()
	want := "the driver gpu.nvidia.com has published 1 of 3 slices of the pool a: no claim gets anything of it"
	if got := strings.Join(m.Unread, "\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFollow watches a cluster with the rights for one namespace only. The watch of nodes fails.
func TestFollow(t *testing.T) {
	s := pageSnapshot(t)
	var objects []runtime.Object
	for _, slice := range s.Slices {
		objects = append(objects, slice)
	}
	client := fake.NewClientset(objects...)
	client.PrependReactor("list", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() == "" {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "resourceclaims"}, "",
				errors.New("no"))
		}
		return false, nil, nil
	})
	lost := false // after the first list
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		defer func() { lost = true }()
		if lost {
			return true, nil, errors.New("connection lost")
		}
		return false, nil, nil
	})
	client.PrependReactor("get", "version", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	await := follow(ctx, t, client, filter{driver: "gpu.nvidia.com"})
	if _, err := client.ResourceV1().ResourceClaims("ml").Create(ctx, claim("late", "a", "gpu-3b-00-0"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ResourceV1().DeviceTaintRules().Create(ctx, &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "cordon"}, Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: ptr.To("a")},
			Taint: resourceapi.DeviceTaint{Key: "example.com/cordoned",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the changes, and what is not known", func(state *boardState) bool {
		unread := strings.Join(state.unread, "\n")
		return strings.Contains(string(state.nodes["a"]), `"claim":"late"`) &&
			strings.Contains(string(state.nodes["a"]), "example.com/cordoned") &&
			strings.Contains(unread, "only those of namespace ml are known") &&
			strings.Contains(unread, "watch nodes: what is shown may be old: ") &&
			strings.Contains(unread, "watch the API server: what is shown may be old: connection refused")
	})
	for _, slice := range s.Slices {
		if err := client.ResourceV1().ResourceSlices().Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await("the end of the driver's slices", func(state *boardState) bool {
		return len(state.nodes) == 0 && strings.Contains(strings.Join(state.unread, "\n"), "gpu.nvidia.com")
	})
}

// follow lets a board follow the cluster until ctx ends. The function that it returns waits for a state.
func follow(ctx context.Context, t *testing.T, client kubernetes.Interface, f filter) func(what string,
	ok func(*boardState) bool) {
	t.Helper()
	first := read.Reader{Client: client, Namespace: "ml"}.Read(ctx, cluster.Slices, cluster.Claims,
		cluster.Nodes)
	b := newBoard(f, "ml")
	if err := b.update(first); err != nil {
		t.Fatal(err)
	}
	go b.follow(ctx, client, first)
	return func(what string, ok func(*boardState) bool) {
		t.Helper()
		for state := b.current(); !ok(state); state = b.current() {
			select {
			case <-state.old:
			case <-ctx.Done():
				t.Fatalf("%s: got %s and unread %q", what, state.nodes["a"], state.unread)
			}
		}
	}
}

// TestFollowOrder: a node whose GPUs have several taints is only sent when it has changed.
func TestFollowOrder(t *testing.T) {
	s := pageSnapshot(t)
	client := fake.NewClientset()
	want := ""
	add := func(o runtime.Object) {
		t.Helper()
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, slice := range s.Slices {
		add(slice)
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		rule := &resourceapi.DeviceTaintRule{}
		rule.Name = name
		rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Pool: ptr.To("a")}
		rule.Spec.Taint = resourceapi.DeviceTaint{Key: name, Effect: resourceapi.DeviceTaintEffectNoSchedule}
		add(rule)
		want += name
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	await := follow(ctx, t, client, filter{})
	for i := range 3 { // changes elsewhere
		name := fmt.Sprint("late-", i)
		if _, err := client.ResourceV1().ResourceClaims("ml").Create(ctx, claim(name, "b", "gpu-1b-00-0"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		await("the order of the taints", func(state *boardState) bool {
			var a pageNode
			if err := json.Unmarshal(state.nodes["a"], &a); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, taint := range a.GPUs[0].Taints {
				got += taint.Key
			}
			if got != want {
				t.Fatalf("got taints %s, want %s", got, want)
			}
			return strings.Contains(string(state.nodes["b"]), name)
		})
	}
}

func TestUI(t *testing.T) {
	s := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write := io.Pipe()
	cmd := Command(genericiooptions.IOStreams{In: strings.NewReader(""), Out: write, ErrOut: io.Discard}, "")
	cmd.SetArgs([]string{"ui", "--kubeconfig", s.kubeconfig(t)})
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		_ = write.CloseWithError(err)
		ended <- err
	}()
	lines := bufio.NewReader(read)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(strings.TrimPrefix(line, "Open "))
	address, token, ok := strings.Cut(strings.TrimPrefix(url, "http://"), "/?token=")
	if !ok || len(token) < 20 || !strings.HasPrefix(address, "127.0.0.1:") {
		t.Fatalf("got %q, want a URL on 127.0.0.1 with a token", line)
	}
	page := newPageServer(newBoard(filter{}, ""), nil, nil, address, token)
	login := page.response(t, "GET", "/?token="+token, "", "") //nolint:bodyclose // it closes it
	page.path = strings.TrimSuffix(login.Header.Get("Location"), "/")
	if m := page.messages(t)(); len(m.Nodes) != 2 {
		t.Errorf("got %d nodes, want 2", len(m.Nodes))
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }() // or the command blocks
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("got %v, want no error after an interrupt", err)
	}
}

func TestUIWithoutRights(t *testing.T) {
	s := newCluster(t)
	s.forbidden = []string{slicesPath}
	if _, _, err := s.run(t, "ui"); err == nil || !strings.Contains(err.Error(), "on resourceslices.resource.k8s.io") {
		t.Errorf("got %v, want the missing right", err)
	}
}
