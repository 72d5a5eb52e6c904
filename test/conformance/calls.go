// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"sigs.k8s.io/yaml"
)

// callTimeout is how long the kubelet waits for the plugin.
const callTimeout = 45 * time.Second

// call makes a check that calls the plugin as the kubelet does, with n allocated claims that no pod uses. It unprepares
// them at the end.
func call(n int, test func(context.Context, *suite, []*drapb.Claim) (string, error)) run {
	return func(ctx context.Context, s *suite) (detail string, err error) {
		if s.Plugin == nil {
			return "", skip("the plugin's socket is not given")
		}
		if err := s.sample(ctx); err != nil {
			return "", err
		}
		if len(s.samples) < n {
			return "", skip(fmt.Sprintf("the node has %d devices for such claims, and this needs %d", len(s.samples),
				n))
		}
		var claims []*drapb.Claim
		for _, sample := range s.samples[:n] {
			claim, err := s.allocated(ctx, sample)
			if err != nil {
				return "", err
			}
			claims = append(claims, claim)
		}
		defer func() {
			for _, claim := range claims {
				if failed := s.unprepare(context.WithoutCancel(ctx), claim); failed != nil && err == nil {
					err = fmt.Errorf("at the end: %w", failed)
				}
			}
		}()
		return test(ctx, s, claims)
	}
}

// sample lets the scheduler allocate claims, and keeps their allocations: two, if the node has the devices.
func (s *suite) sample(ctx context.Context) error {
	if len(s.samples) > 0 {
		return nil
	}
	free, err := s.freeDevices(ctx)
	if err != nil {
		return err
	}
	var samples []resourceapi.AllocationResult
	for range max(min(free, 2), 1) {
		_, claim, err := s.started(ctx)
		if err != nil {
			return fmt.Errorf("an allocation to copy: %w", err)
		}
		samples = append(samples, *claim.Status.Allocation)
	}
	if err := s.clean(ctx); err != nil {
		return fmt.Errorf("an allocation to copy: %w", err)
	}
	s.samples = samples
	return nil
}

// allocated creates a claim with an allocation, as the scheduler does.
func (s *suite) allocated(ctx context.Context, allocation resourceapi.AllocationResult) (*drapb.Claim, error) {
	claim, err := s.claim(ctx)
	if err != nil {
		return nil, err
	}
	claim.Status.Allocation = allocation.DeepCopy()
	if _, err := s.Client.ResourceV1().ResourceClaims(s.namespace).UpdateStatus(ctx, claim,
		metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("allocate a claim: %w", err)
	}
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}, nil
}

// prepare returns the devices of each claim, in order.
func (s *suite) prepare(ctx context.Context, claims ...*drapb.Claim) ([][]*drapb.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := s.Plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources: %w", err)
	}
	var all [][]*drapb.Device
	for _, claim := range claims {
		answer := response.Claims[claim.Uid]
		switch {
		case answer == nil:
			return nil, fmt.Errorf("NodePrepareResources: claim %s has no answer", claim.Name)
		case answer.Error != "":
			return nil, fmt.Errorf("NodePrepareResources: claim %s: %s", claim.Name, answer.Error)
		}
		slices.SortFunc(answer.Devices, func(a, b *drapb.Device) int { return cmp.Compare(text(a), text(b)) })
		all = append(all, answer.Devices)
	}
	return all, nil
}

func (s *suite) unprepare(ctx context.Context, claims ...*drapb.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := s.Plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	for _, claim := range claims {
		answer := response.Claims[claim.Uid]
		switch {
		case answer == nil:
			return fmt.Errorf("NodeUnprepareResources: claim %s has no answer", claim.Name)
		case answer.Error != "":
			return fmt.Errorf("NodeUnprepareResources: claim %s: %s", claim.Name, answer.Error)
		}
	}
	return nil
}

// text writes a device for comparisons and messages.
func text(d *drapb.Device) string {
	return fmt.Sprintf("%s/%s requests=%s share=%s cdi=%s", d.PoolName, d.DeviceName, strings.Join(d.RequestNames, ","),
		d.GetShareId(), strings.Join(slices.Sorted(slices.Values(d.CdiDeviceIds)), ","))
}

func texts(all []*drapb.Device) string {
	var lines []string
	for _, d := range all {
		lines = append(lines, text(d))
	}
	return strings.Join(lines, "; ")
}

// prepareAnswers compares the answer with the allocation.
func prepareAnswers(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	prepared, err := s.prepare(ctx, claims...)
	if err != nil {
		return "", err
	}
	for i, claim := range claims {
		var want, got []string
		for _, result := range s.samples[i].Devices.Results {
			if result.Driver == s.Driver {
				want = append(want, fmt.Sprintf("%s/%s for request %s", result.Pool, result.Device,
					resourceclaim.BaseRequestRef(result.Request)))
			}
		}
		for _, d := range prepared[i] {
			for _, name := range d.RequestNames {
				got = append(got, fmt.Sprintf("%s/%s for request %s", d.PoolName, d.DeviceName, name))
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return "", fmt.Errorf("claim %s: prepared %v, allocated %v", claim.Name, got, want)
		}
	}
	return texts(prepared[0]), nil
}

// shareIDs: the kubelet and metadata tell the shares of one device apart by it.
func shareIDs(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	var want, got []string
	for _, result := range s.samples[0].Devices.Results {
		if result.Driver == s.Driver && result.ShareID != nil {
			want = append(want, fmt.Sprintf("%s/%s share %s", result.Pool, result.Device, *result.ShareID))
		}
	}
	if len(want) == 0 {
		return "", absent("the allocation has no share ID: no device of the claim allows multiple allocations")
	}
	prepared, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", err
	}
	for _, d := range prepared[0] {
		if d.ShareId != nil {
			got = append(got, fmt.Sprintf("%s/%s share %s", d.PoolName, d.DeviceName, *d.ShareId))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return "", fmt.Errorf("prepared %v, allocated %v", got, want)
	}
	return "", nil
}

func prepareTwice(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	first, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", err
	}
	second, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", fmt.Errorf("the second time: %w", err)
	}
	if a, b := texts(first[0]), texts(second[0]); a != b {
		return "", fmt.Errorf("first %s, then %s", a, b)
	}
	return "", nil
}

func unprepareTwice(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	if _, err := s.prepare(ctx, claims[0]); err != nil {
		return "", err
	}
	if err := s.unprepare(ctx, claims[0]); err != nil {
		return "", err
	}
	if err := s.unprepare(ctx, claims[0]); err != nil {
		return "", fmt.Errorf("the second time: %w", err)
	}
	return "", nil
}

func unprepareUnknown(ctx context.Context, s *suite, _ []*drapb.Claim) (string, error) {
	return "", s.unprepare(ctx, &drapb.Claim{Namespace: s.namespace, Name: "unknown", Uid: string(uuid.NewUUID())})
}

func prepareAgain(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	first, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", err
	}
	if err := s.unprepare(ctx, claims[0]); err != nil {
		return "", err
	}
	again, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", fmt.Errorf("after Unprepare: %w", err)
	}
	if len(again[0]) != len(first[0]) {
		return "", fmt.Errorf("first %s, after Unprepare %s", texts(first[0]), texts(again[0]))
	}
	return "", nil
}

func unprepareDeleted(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	if _, err := s.prepare(ctx, claims[0]); err != nil {
		return "", err
	}
	if err := s.deleteClaim(ctx, claims[0]); err != nil {
		return "", err
	}
	if err := s.unprepare(ctx, claims[0]); err != nil {
		return "", err
	}
	return "", s.usable(ctx, 0)
}

// usable prepares and unprepares a new claim with the allocation of a sample.
func (s *suite) usable(ctx context.Context, sample int) error {
	next, err := s.allocated(ctx, s.samples[sample])
	if err != nil {
		return err
	}
	if _, err := s.prepare(ctx, next); err != nil {
		return fmt.Errorf("the next claim with the device: %w", errors.Join(err, s.unprepare(ctx, next)))
	}
	if err := s.unprepare(ctx, next); err != nil {
		return err
	}
	return s.deleteClaim(ctx, next)
}

func (s *suite) deleteClaim(ctx context.Context, claim *drapb.Claim) error {
	return s.Client.ResourceV1().ResourceClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{})
}

func prepareWrongUID(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	other := &drapb.Claim{Namespace: claims[0].Namespace, Name: claims[0].Name, Uid: string(uuid.NewUUID())}
	if prepared, err := s.prepare(ctx, other); err == nil {
		return "", errors.Join(fmt.Errorf("a claim with another UID is prepared: %s", texts(prepared[0])),
			s.unprepare(ctx, other))
	}
	return "", nil
}

func prepareSeveral(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	if _, err := s.prepare(ctx, claims...); err != nil {
		return "", err
	}
	return "", s.unprepare(ctx, claims...)
}

// callsAtOnce prepares each claim three times at the same time, and then unprepares each of them three times.
func callsAtOnce(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	const times = 3
	answers := make([]string, times*len(claims))
	if err := together(len(answers), func(i int) error {
		prepared, err := s.prepare(ctx, claims[i%len(claims)])
		if err == nil {
			answers[i] = texts(prepared[0])
		}
		return err
	}); err != nil {
		return "", err
	}
	for i, answer := range answers {
		if first := answers[i%len(claims)]; answer != first {
			return "", fmt.Errorf("one call has the answer %s, another %s", first, answer)
		}
	}
	return "", together(len(answers), func(i int) error { return s.unprepare(ctx, claims[i%len(claims)]) })
}

// together calls do for 0 to n-1 at the same time.
func together(n int, do func(int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// qualified is the form of a CDI device's fully-qualified name.
var qualified = regexp.MustCompile(
	`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*=[A-Za-z0-9][A-Za-z0-9._:-]*$`)

func cdiNames(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	prepared, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	for _, id := range ids(prepared[0]) {
		if !qualified.MatchString(id) {
			return "", fmt.Errorf("CDI device %q is not a name like vendor.com/class=device", id)
		}
		if seen[id] {
			return "", fmt.Errorf("CDI device %q is there twice", id)
		}
		seen[id] = true
	}
	return fmt.Sprintf("%d CDI devices", len(seen)), nil
}

// ids returns the CDI devices of prepared devices.
func ids(prepared []*drapb.Device) []string {
	var all []string
	for _, d := range prepared {
		all = append(all, d.CdiDeviceIds...)
	}
	return all
}

// specs returns the CDI devices that the files of the CDI directory define, with their files.
func specs(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	defined := map[string]string{}
	for _, entry := range entries {
		if ext := filepath.Ext(entry.Name()); ext != ".json" && ext != ".yaml" {
			continue
		}
		file := filepath.Join(dir, entry.Name())
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // it has just been removed
		} else if err != nil {
			return nil, err
		}
		var spec struct {
			Kind    string `json:"kind"`
			Devices []struct {
				Name string `json:"name"`
			} `json:"devices"`
		}
		if err := yaml.Unmarshal(data, &spec); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, device := range spec.Devices {
			defined[spec.Kind+"="+device.Name] = file
		}
	}
	return defined, nil
}

// resolve returns the files that define the CDI devices of prepared devices.
func (s *suite) resolve(prepared []*drapb.Device) ([]string, error) {
	if s.CDIDir == "" {
		return nil, skip("the CDI directory is not given")
	}
	defined, err := specs(s.CDIDir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, id := range ids(prepared) {
		file, ok := defined[id]
		if !ok {
			return nil, fmt.Errorf("no file in the CDI directory defines %s", id)
		}
		files = append(files, file)
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

func cdiResolves(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	prepared, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", err
	}
	files, err := s.resolve(prepared[0])
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d files", len(files)), nil
}

func cdiRemoved(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	if s.CDIDir == "" {
		return "", skip("the CDI directory is not given")
	}
	before, err := specs(s.CDIDir)
	if err != nil {
		return "", err
	}
	if _, err := s.prepare(ctx, claims[0]); err != nil {
		return "", err
	}
	if err := s.unprepare(ctx, claims[0]); err != nil {
		return "", err
	}
	after, err := specs(s.CDIDir)
	if err != nil {
		return "", err
	}
	for id, file := range after {
		if _, ok := before[id]; !ok && strings.Contains(file+id, claims[0].Uid) {
			return "", fmt.Errorf("after Unprepare, %s still defines %s", file, id)
		}
	}
	return "", nil
}

// cdiRecreated: /run is empty after a restart of the node, and other programs may have cleaned it.
func cdiRecreated(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	prepared, err := s.prepare(ctx, claims[0])
	if err != nil {
		return "", err
	}
	files, err := s.resolve(prepared[0])
	if err != nil {
		return "", err
	}
	removed := 0
	for _, file := range files {
		if strings.Contains(file, claims[0].Uid) { // others may be of the installation
			removed++
			if err := os.Remove(file); err != nil {
				return "", err
			}
		}
	}
	if removed == 0 {
		return "", skip("no CDI file has the claim's UID in its name")
	}
	if prepared, err = s.prepare(ctx, claims[0]); err != nil {
		return "", err
	}
	_, err = s.resolve(prepared[0])
	return "", err
}

// forgottenClaim prepares a claim that nobody unprepares, as after the kubelet has lost its state.
func forgottenClaim(ctx context.Context, s *suite, claims []*drapb.Claim) (string, error) {
	if s.ForgottenAfter == 0 {
		return "", skip("no time is given after which the driver may release it")
	}
	if _, err := s.prepare(ctx, claims[0]); err != nil {
		return "", err
	}
	if err := s.deleteClaim(ctx, claims[0]); err != nil {
		return "", err
	}
	longer := *s
	longer.Timeout = s.ForgottenAfter
	return "", longer.until(ctx, "the device is usable", func(ctx context.Context) (bool, string, error) {
		err := s.usable(ctx, 0)
		return err == nil, fmt.Sprint(err), nil
	})
}
