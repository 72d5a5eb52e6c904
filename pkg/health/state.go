// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Subject is what a condition is about: a GPU, or a part of it.
type Subject struct {
	GPU gpu.UUID `json:"gpu"`
	// Partition is the place of the partition that is sick; nil: the whole GPU is.
	Partition *gpu.Placement `json:"partition,omitempty"`
}

// Affects reports whether a condition of the subject concerns the device: a partition that shares memory slices with
// a sick one is sick too, and so is a whole GPU with a sick partition.
func (s Subject) Affects(d gpu.Device) bool {
	switch {
	case d.Partition == nil:
		return d.Physical() == s.GPU
	case s.Partition == nil:
		return d.Partition.Parent == s.GPU
	}
	return d.Partition.Overlaps(*s.Partition)
}

func (s Subject) equal(other Subject) bool {
	if s.GPU != other.GPU || (s.Partition == nil) != (other.Partition == nil) {
		return false
	}
	return s.Partition == nil || *s.Partition == *other.Partition
}

// Condition is one thing that is, or was, wrong with a GPU or a partition.
type Condition struct {
	Subject
	Cause Cause `json:"cause"`
	// Detail says more than the cause: the NVLinks that are down, for instance.
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"` // when it was first seen
	Last   time.Time `json:"last"`  // when it was last seen
	Count  int       `json:"count"` // how often it was seen since then
	// Returns is how often it has come back within memory after it had ended. Each time it stays twice as long.
	Returns int    `json:"returns,omitempty"`
	BootID  string `json:"bootID"` // of the machine, when it was last seen
	// WasReset means that the GPU has been reset since it was last seen, too soon for a cause that comes back.
	WasReset bool `json:"wasReset,omitempty"`
	// Ended is when it ended; zero: it has not.
	Ended time.Time `json:"ended,omitzero"`
	// End says why it ended.
	End End `json:"end,omitempty"`
}

// End says why a condition has ended.
type End string

const (
	// EndQuiet means that it has not been seen for the quiet time.
	EndQuiet End = "quiet"
	// EndAnswer means that NVML says that it is gone, or that the GPU needs no recovery.
	EndAnswer End = "healthy again"
	// EndReset means that the GPU was reset.
	EndReset End = "reset"
	// EndReboot means that the machine was started again.
	EndReboot End = "reboot"
	// EndGone means that the GPU was taken out.
	EndGone End = "the GPU is gone"
	// EndCleared means that a person has cleared it.
	EndCleared End = "cleared"
)

// Active reports whether the condition has not ended.
func (c Condition) Active() bool { return c.Ended.IsZero() }

const (
	// memory is how long an ended condition is remembered. One that comes back within this time is flapping.
	memory = 24 * time.Hour
	// maxConditions is how many conditions are remembered. Of the ended ones, the oldest are forgotten first.
	maxConditions = 500
	// maxQuiet is the longest that a flapping condition stays after it was last seen.
	maxQuiet = 24 * time.Hour
	// settleTime is how long after an event the driver may take to say which recovery the GPU needs. An earlier answer
	// does not count.
	settleTime = 5 * time.Second
	// flapTime is how long a cause must be gone before an answer of NVML or a reset ends it, if it has come back twice;
	// it is doubled each time it comes back.
	flapTime = time.Minute
)

// State is everything that is known about the health of the GPUs of a node. It is plain data: all methods are given the
// time, and none does I/O. Every method that changes conditions returns those that began or ended.
type State struct {
	Conditions []Condition `json:"conditions,omitempty"`
	// Links are the NVLinks of each GPU that have been active. One of them that is not is down.
	Links map[gpu.UUID][]int `json:"links,omitempty"`
	// Peers are the GPUs at the other ends of those that lead to no switch, by link.
	Peers map[gpu.UUID]map[int]gpu.PCIAddress `json:"peers,omitempty"`
	// Best is the best that each GPU has had in its slot.
	Best map[gpu.UUID]Best `json:"best,omitempty"`
	// suspects are the silent faults of each GPU that the last looks in succession have seen.
	suspects map[gpu.UUID]suspects
	// AER are the PCIe errors of each GPU at the last look.
	AER map[gpu.UUID]AERCount `json:"aer,omitempty"`
}

// AERCount are the PCIe errors of a GPU in one boot of the machine.
type AERCount struct {
	gpu.AER
	BootID string `json:"bootID"`
}

// See records that something is wrong with the subject.
func (s *State) See(now time.Time, bootID string, about Subject, cause Cause, detail string) (began []Condition) {
	i := s.index(about, cause)
	if i < 0 {
		s.forget(now)
		s.Conditions = append(s.Conditions, Condition{Subject: about, Cause: cause, Detail: detail, Since: now,
			Last: now, Count: 1, BootID: bootID})
		return slices.Clone(s.Conditions[len(s.Conditions)-1:])
	}
	c := &s.Conditions[i]
	active := c.Active()
	c.Last, c.BootID, c.Detail, c.WasReset = now, bootID, cmp.Or(detail, c.Detail), false
	if active {
		c.Count++
		return nil
	}
	if now.Sub(c.Ended) < memory {
		c.Returns++
	} else {
		c.Returns = 0
	}
	c.Since, c.Count, c.Ended, c.End = now, 1, time.Time{}, ""
	return []Condition{*c}
}

// index returns where the condition is; -1: there is none.
func (s *State) index(about Subject, cause Cause) int {
	return slices.IndexFunc(s.Conditions, func(c Condition) bool { return c.Cause == cause && c.equal(about) })
}

// Clamp sets times after now to now, and reports whether there were any: the clock was ahead then, and nothing that
// waits for a time after them would end before the clock is there again. It goes by the wall clock, as files do.
func (s *State) Clamp(now time.Time) (changed bool) {
	now = now.Round(0)
	for i := range s.Conditions {
		c := &s.Conditions[i]
		for _, t := range []*time.Time{&c.Since, &c.Last, &c.Ended} {
			if t.Round(0).After(now) {
				*t, changed = now, true
			}
		}
	}
	return changed
}

// Merge takes later news of conditions from the state of another instance, and conditions that are not known here. It
// reports whether anything has changed.
func (s *State) Merge(other State) (changed bool) {
	for _, c := range other.Conditions {
		i := s.index(c.Subject, c.Cause)
		switch {
		case i < 0:
			s.Conditions = append(s.Conditions, c)
		case s.Conditions[i].news().Before(c.news()):
			s.Conditions[i] = c
		default:
			continue
		}
		changed = true
	}
	return changed
}

// news returns when something was last known of the condition.
func (c Condition) news() time.Time {
	if c.Ended.After(c.Last) {
		return c.Ended
	}
	return c.Last
}

// forget removes the conditions that ended too long ago, and the oldest ended ones if there are too many.
func (s *State) forget(now time.Time) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c Condition) bool {
		return !c.Active() && now.Sub(c.Ended) >= memory
	})
	for len(s.Conditions) >= maxConditions {
		oldest := -1
		for i, c := range s.Conditions {
			if !c.Active() && (oldest < 0 || c.Ended.Before(s.Conditions[oldest].Ended)) {
				oldest = i
			}
		}
		if oldest < 0 {
			return // all are active: as many as there are causes and partitions
		}
		s.Conditions = slices.Delete(s.Conditions, oldest, oldest+1)
	}
}

// Policies returns the policy for a GPU.
type Policies func(gpu.UUID) Policy

// Answered records what the GPU answers about itself: conditions that it can be asked about begin and end. If the
// driver says that the GPU needs no recovery, conditions that wait for one end too, unless an administrator has changed
// what ends them. linked reports whether a GPU had its NVLinks on when this one was asked.
func (s *State) Answered(now time.Time, bootID string, id gpu.UUID, is gpu.Health, linked func(gpu.PCIAddress) bool,
	policies Policies) []Condition {
	var changed []Condition
	wrong := problems(is)
	if down := s.linksDown(id, is, linked); len(down) > 0 {
		wrong = append(wrong, problem{NVLinkDown, "links " + join(down)})
	}
	silent, linkUnknown := s.silent(id, is)
	if len(wrong) > 0 && wrong[len(wrong)-1].cause == NVLinkDown { // which says it better
		silent = slices.DeleteFunc(silent, func(p problem) bool { return p.cause == NVLinkMissing })
	}
	wrong = append(wrong, silent...)
	for _, p := range wrong {
		changed = append(changed, s.See(now, bootID, Subject{GPU: id}, p.cause, p.detail)...)
	}
	changed = append(changed, s.end(now, EndAnswer, func(c Condition) bool {
		known := !unknown(c.Cause, is) && (c.Cause != PCIeLinkDegraded || !linkUnknown || c.BootID != bootID)
		return c.GPU == id && answered(c.Cause) && known && now.Sub(c.Last) >= c.flapping() &&
			!slices.ContainsFunc(wrong, func(p problem) bool { return p.cause == c.Cause })
	})...)
	if is.RecoveryAction != gpu.RecoveryNone {
		return changed
	}
	policy := policies(id)
	return append(changed, s.end(now, EndAnswer, func(c Condition) bool {
		return c.GPU == id && c.endedByAnswer(policy.For(c.Cause)) &&
			is.At.Sub(c.Last) >= max(settleTime, c.flapping())
	})...)
}

// Counted records the PCIe errors of the GPU. Those of the first look of a boot happened before anybody watched: they
// begin nothing.
func (s *State) Counted(now time.Time, bootID string, id gpu.UUID, is gpu.AER) (began []Condition) {
	was, known := s.AER[id]
	if s.AER == nil {
		s.AER = map[gpu.UUID]AERCount{}
	}
	s.AER[id] = AERCount{is, bootID}
	if !known || was.BootID != bootID {
		return nil
	}
	see := func(cause Cause, was, is uint64) {
		if is > was {
			detail := fmt.Sprintf("the kernel has counted %d", is)
			began = append(began, s.See(now, bootID, Subject{GPU: id}, cause, detail)...)
		}
	}
	see(AERFatal, was.Fatal, is.Fatal)
	see(AERNonfatal, was.Nonfatal, is.Nonfatal)
	return began
}

// Lost records that the GPU does not answer, because of GPULost or ResetRequired. Only the present cause goes on.
func (s *State) Lost(now time.Time, bootID string, id gpu.UUID, cause Cause) []Condition {
	ended := s.end(now, EndAnswer, func(c Condition) bool {
		return c.GPU == id && c.Cause != cause && (c.Cause == GPULost || c.Cause == ResetRequired)
	})
	return append(ended, s.See(now, bootID, Subject{GPU: id}, cause, "")...)
}

// Reset ends the conditions of the GPU that a reset ends. Those that NVML can be asked about end when it says so, and
// one that keeps coming back ends later: see Elapsed.
func (s *State) Reset(now time.Time, id gpu.UUID, policies Policies) []Condition {
	waits := func(c Condition) bool {
		ends := !answered(c.Cause) || c.Cause == PCIeLinkDegraded // at rest, NVML's answer does not end that one
		return c.GPU == id && ends && policies(id).For(c.Cause).Recovery == RecoveryReset
	}
	for i, c := range s.Conditions {
		s.Conditions[i].WasReset = c.WasReset || c.Active() && waits(c)
	}
	return s.end(now, EndReset, func(c Condition) bool { return waits(c) && !now.Before(c.Until(policies(id))) })
}

// Gone ends what GPUs that are not known any more can be asked about. What else is wrong with them stays, because they
// may come back.
func (s *State) Gone(now time.Time, known func(gpu.UUID) bool) []Condition {
	return s.end(now, EndGone, func(c Condition) bool { return answered(c.Cause) && !known(c.GPU) })
}

// Booted ends the conditions of earlier boots that a boot ends.
func (s *State) Booted(now time.Time, bootID string, policies Policies) []Condition {
	return s.end(now, EndReboot, func(c Condition) bool {
		return c.BootID != bootID && !answered(c.Cause) && policies(c.GPU).For(c.Cause).Recovery != RecoveryManual
	})
}

// Elapsed ends the conditions whose quiet time is over.
func (s *State) Elapsed(now time.Time, policies Policies) []Condition {
	return s.end(now, EndQuiet, func(c Condition) bool {
		until := c.Until(policies(c.GPU))
		return !until.IsZero() && !now.Before(until)
	})
}

// Clear ends all conditions of the GPU, because a person says so, and forgets its NVLinks and the best that it has had.
// What NVML reports begins again.
func (s *State) Clear(now time.Time, id gpu.UUID) []Condition {
	delete(s.Links, id)
	delete(s.Peers, id)
	accepted := slices.ContainsFunc(s.Conditions, func(c Condition) bool {
		return c.GPU == id && c.Cause == PCIeLinkDegraded && c.Active()
	})
	best := Best{Slot: s.Best[id].Slot, Accepted: accepted || s.Best[id].Accepted}
	if delete(s.Best, id); best.Accepted {
		s.Best[id] = best
	}
	return s.end(now, EndCleared, func(c Condition) bool { return c.GPU == id })
}

// linksDown returns the NVLinks of the GPU that have been active and are not, except for those to a GPU that is not
// linked. It remembers all links while each of them is active.
func (s *State) linksDown(id gpu.UUID, is gpu.Health, linked func(gpu.PCIAddress) bool) (down []int) {
	if is.LinksUp == nil {
		return nil
	}
	all := len(is.LinksUp) > 0
	for _, link := range s.Links[id] {
		if slices.Contains(is.LinksUp, link) {
			continue
		}
		all = false
		if peer, direct := s.Peers[id][link]; !direct || linked(peer) {
			down = append(down, link)
		}
	}
	if all {
		s.remember(id, is, linked)
	}
	return down
}

// remember remembers the active NVLinks of the GPU, and the GPUs at their ends. In a virtual machine, NVML may name
// addresses that the machine does not have.
func (s *State) remember(id gpu.UUID, is gpu.Health, linked func(gpu.PCIAddress) bool) {
	peers := maps.Clone(is.LinkPeers)
	maps.DeleteFunc(peers, func(link int, peer gpu.PCIAddress) bool {
		return s.Peers[id][link] != peer && !linked(peer)
	})
	if s.Links == nil {
		s.Links = map[gpu.UUID][]int{}
	}
	if s.Peers == nil {
		s.Peers = map[gpu.UUID]map[int]gpu.PCIAddress{}
	}
	s.Links[id], s.Peers[id] = is.LinksUp, peers
	if len(peers) == 0 {
		delete(s.Peers, id)
	}
}

// end ends the active conditions that match.
func (s *State) end(now time.Time, why End, matches func(Condition) bool) (ended []Condition) {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Active() && matches(*c) {
			c.Ended, c.End = now, why
			ended = append(ended, *c)
		}
	}
	return ended
}

// Of returns the active conditions that concern the device, in the order in which they began.
func (s *State) Of(d gpu.Device) []Condition {
	var all []Condition
	for _, c := range s.Conditions {
		if c.Active() && c.Affects(d) {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b Condition) int { return a.Since.Compare(b.Since) })
	return all
}

// LastEnded returns when the last condition of the device ended; zero: none is remembered.
func (s *State) LastEnded(d gpu.Device) time.Time {
	var last time.Time
	for _, c := range s.Conditions {
		if c.Affects(d) && c.Ended.After(last) {
			last = c.Ended
		}
	}
	return last
}

// Until returns when the condition ends by itself if it is not seen again; zero: it does not.
func (c Condition) Until(policy Policy) time.Time {
	rule := policy.For(c.Cause)
	if answered(c.Cause) || rule.Recovery != RecoveryQuietTime && (rule.Recovery != RecoveryReset || !c.WasReset) {
		return time.Time{}
	}
	return c.Last.Add(c.Quiet(rule))
}

// Quiet returns for how long the cause must be gone before the condition ends; 0: no time ends it, or it ends at once.
func (c Condition) Quiet(rule Rule) time.Duration {
	switch {
	case answered(c.Cause), rule.Recovery == RecoveryReset, c.endedByAnswer(rule):
		return c.flapping()
	case rule.Recovery == RecoveryQuietTime:
		return doubled(rule.QuietTime, c.Returns)
	}
	return 0
}

// EndsWhen says what ends the condition: "the node has been rebooted".
func (c Condition) EndsWhen(rule Rule) string {
	answer := ""
	if c.endedByAnswer(rule) {
		answer = ", or NVIDIA's driver says that the GPU needs no recovery"
	}
	switch {
	case answered(c.Cause):
		return "the GPU no longer reports it"
	case rule.Recovery == RecoveryQuietTime:
		return fmt.Sprintf("it has not occurred for %s", c.Quiet(rule))
	case rule.Recovery == RecoveryReset:
		return "the GPU has been reset" + answer
	case rule.Recovery == RecoveryReboot:
		return "the node has been rebooted" + answer
	}
	return "a person clears it"
}

// endedByAnswer reports whether the condition, about which NVML cannot be asked, ends when NVIDIA's driver says that
// the GPU needs no recovery. It does not if an administrator has changed what ends it.
func (c Condition) endedByAnswer(rule Rule) bool {
	return !answered(c.Cause) && byReset(rule) && rule.Recovery == Policy{}.For(c.Cause).Recovery
}

// flapping returns for how long the cause must be gone before an answer of NVML or a reset ends the condition.
func (c Condition) flapping() time.Duration {
	if c.Returns < 2 || c.Cause == NotRestored { // which is no fault that comes and goes
		return 0
	}
	return doubled(flapTime, c.Returns-2)
}

// doubled returns the duration, doubled so many times, but not more than maxQuiet.
func doubled(d time.Duration, times int) time.Duration {
	for range times {
		if d >= maxQuiet {
			break
		}
		d *= 2
	}
	return min(d, maxQuiet)
}

// problem is something wrong that a GPU has answered.
type problem struct {
	cause  Cause
	detail string
}

// problems returns what is wrong with a GPU that answers this.
func problems(is gpu.Health) []problem {
	var all []problem
	add := func(wrong bool, cause Cause, detail string) {
		if wrong {
			all = append(all, problem{cause, detail})
		}
	}
	add(is.RecoveryAction.Needed(), recoveryActionPrefix+Cause(is.RecoveryAction), "")
	add(is.RowsPending, RowRemapPending, "")
	add(is.RowsFailed, RowRemapFailed, "")
	add(is.PagesPending, PageRetirementPending, "")
	add(is.Fabric != "", FabricUnhealthy, is.Fabric)
	add(is.License == gpu.Unlicensed, VGPUUnlicensed, "")
	add(is.ComputeMode == gpu.Prohibited, ComputeModeProhibited, "")
	add(is.ComputeMode == gpu.ExclusiveProcess && !is.Claimed, ComputeModeExclusiveProcess, "")
	add(is.NodeMissing != "", DeviceNodeMissing, is.NodeMissing)
	add(is.NotRestored, NotRestored, "")
	return all
}

func join(numbers []int) string {
	var text []string
	for _, n := range numbers {
		text = append(text, strconv.Itoa(n))
	}
	return strings.Join(text, ", ")
}

// answered reports whether the GPU can be asked whether the cause is still there.
func answered(c Cause) bool {
	_, xid := c.XID()
	return !xid && c != ECCDoubleBit && c != AERFatal && c != AERNonfatal
}

// unknown reports whether the answers do not say whether the cause is still there.
func unknown(c Cause, is gpu.Health) bool {
	switch {
	case c == RowRemapPending || c == RowRemapFailed:
		return is.RowsUnknown
	case c == VGPUUnlicensed:
		return is.License == gpu.LicenseUnknown
	case c == ComputeModeExclusiveProcess:
		return is.Claimed
	case c == NVLinkDown || c == NVLinkMissing:
		return is.LinksUp == nil
	case c == ECCOff:
		return is.ECC == ""
	case c == FabricUnhealthy:
		return is.FabricUnknown
	case strings.HasPrefix(string(c), string(recoveryActionPrefix)):
		return is.RecoveryAction == gpu.RecoveryUnknown
	}
	return false
}

// byReset reports whether the rule waits for a reset, or for a reboot, which resets all GPUs.
func byReset(rule Rule) bool {
	return rule.Recovery == RecoveryReset || rule.Recovery == RecoveryReboot
}
