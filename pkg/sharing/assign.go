// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"slices"
	"strconv"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// resultKind is how much of its device a result has.
type resultKind int

const (
	whole       resultKind = iota // all of it, alone
	fraction                      // as much as was asked for
	replica                       // one of a fixed number of parts
	unlimited                     // all of it, beside any number of others
	partition                     // a partition, alone
	passthrough                   // all of it, or a vGPU, for a virtual machine
)

// kindOf uses what the scheduler has counted, which may be older than the present sharing mode of the GPU.
func kindOf(r allocation.Result, d gpu.Device) resultKind {
	switch c := r.Consumed; {
	case d.Type == gpu.TypeVFIO, d.VGPU != nil:
		return passthrough
	case d.Partition != nil:
		return partition
	case c.Replicas > 0:
		return replica
	case r.ShareID != "" && (d.Use.Sharing == gpu.Unlimited || c.Memory == 0): // a fraction has memory
		return unlimited
	case r.ShareID == "" || c.Memory >= inventory.Memory(d) && (c.Cores == 0 || c.Cores == 100):
		return whole
	}
	return fraction
}

// useWhole assigns the whole GPU. The claim says how its containers share it.
func (a *Assignment) useWhole(s api.Sharing, groups []mpsGroup) error {
	switch {
	case s.TimeSlicing != nil:
		a.Settings = timeSlices(*s.TimeSlicing)
	case s.MPS != nil:
		return a.joinGroup(groups)
	}
	return nil
}

// usePartition assigns a partition. The hardware isolates it; the claim says how its containers share it.
func (a *Assignment) usePartition(s api.Sharing, groups []mpsGroup) error {
	switch {
	case s.TimeSlicing != nil:
		a.Unsliced = true
	case s.MPS != nil:
		return a.joinGroup(groups)
	}
	return nil
}

// useFraction assigns the requested share with the administrator's isolation. The claim may choose TimeSlicing, without
// limits, or MPS with a higher limit of the multiprocessors than what is counted.
func (a *Assignment) useFraction(r allocation.Result, d gpu.Device) error {
	if d.Use.Sharing != gpu.Fractional {
		return refuse(ErrRefused, "was allocated as a share, and is %s by now; delete the pod, so that it is "+
			"scheduled anew", d.Use)
	}
	a.Share = &Share{Memory: r.Consumed.Memory, Cores: r.Consumed.Cores}
	s := r.Config.Sharing
	switch {
	case s.TimeSlicing != nil:
		a.Settings = timeSlices(*s.TimeSlicing)
		a.Unenforced = true
		return nil
	case s.MPS != nil && d.Use.Isolation != gpu.IsolationMPS:
		return refuseField(ErrRefused, "sharing.strategy", "MPS", "the administrator has chosen isolation %s for "+
			"shares of this GPU", d.Use.Isolation)
	case s.MPS != nil && (s.MPS.Memory != 0 || len(s.MPS.MemoryPerDevice) > 0):
		return refuseField(ErrRefused, "sharing.mpsConfig", "", "the memory limit of a share is what its request asks "+
			"for in capacity.requests; leave the default limits out")
	case s.MPS != nil && s.MPS.ThreadPercentage != 0 && s.MPS.ThreadPercentage < r.Consumed.Cores:
		return refuseField(ErrRefused, "sharing.mpsConfig.defaultActiveThreadPercentage",
			strconv.Itoa(s.MPS.ThreadPercentage), "must be at least the cores that the request asks for, %d",
			r.Consumed.Cores)
	}
	q := quota{memory: r.Consumed.Memory, cores: r.Consumed.Cores}
	if s.MPS != nil && s.MPS.ThreadPercentage != 0 { // cores are counted, this is the limit
		q.cores = s.MPS.ThreadPercentage
	}
	if q.memory >= inventory.Memory(d) {
		q.memory = 0
	}
	return a.isolate(q, d)
}

// useReplica assigns replicas with the administrator's isolation.
func (a *Assignment) useReplica(r allocation.Result, d gpu.Device) error {
	n := r.Consumed.Replicas
	if d.Use.Sharing != gpu.Replicated || d.Use.Replicas < 1 {
		return refuse(ErrRefused, "was allocated as a replica, and is %s by now; delete the pod, so that it is "+
			"scheduled anew", d.Use)
	}
	a.Share = &Share{Replicas: n}
	s := r.Config.Sharing
	switch {
	case s.MPS != nil:
		return refuseField(ErrRefused, "sharing.strategy", "MPS",
			"how the replicas of this GPU are kept apart is up to the administrator (isolation %s)", d.Use.Isolation)
	case s.TimeSlicing != nil && d.Use.Isolation != gpu.IsolationNone:
		return refuseField(ErrRefused, "sharing.strategy", "TimeSlicing",
			"the administrator has chosen isolation %s for the replicas of this GPU", d.Use.Isolation)
	case s.TimeSlicing != nil:
		a.Settings = timeSlices(*s.TimeSlicing)
		return nil
	}
	q := replicas(n, d)
	if d.Use.Isolation == gpu.IsolationCgroup { // the cores are counted, and nothing limits them
		q.cores = 0
	}
	return a.isolate(q, d)
}

// useUnlimited assigns the GPU without limits, beside any number of others. Only what the claim asks for is counted.
func (a *Assignment) useUnlimited(r allocation.Result, d gpu.Device) error {
	if d.Use.Sharing != gpu.Unlimited {
		return refuse(ErrRefused, "was allocated without limits, and is %s by now; delete the pod, so that it is "+
			"scheduled anew", d.Use)
	}
	a.Share = &Share{Memory: r.Consumed.Memory, Cores: r.Consumed.Cores}
	a.Unenforced = true
	switch s := r.Config.Sharing; {
	case s.MPS != nil:
		return refuseField(ErrRefused, "sharing.strategy", "MPS",
			"the administrator lets any number of claims use this GPU, without MPS (sharing unlimited)")
	case s.TimeSlicing != nil:
		a.Settings = timeSlices(*s.TimeSlicing)
	}
	return nil
}

// replicas returns the quota of n replicas of the device.
func replicas(n int, d gpu.Device) quota {
	all := d.Use.Replicas
	return quota{
		memory: inventory.Memory(d) / uint64(all) * uint64(n) / mib * mib,
		cores:  max(1, 100*n/all),
	}
}

// allowsReplica refuses a second replica for a claim if the administrator allows only one.
func (p Plan) allowsReplica(a Assignment, inv inventory.Inventory) error {
	d, _ := inv.Find(a.Device)
	isReplica := func(a Assignment) bool { return a.Share != nil && a.Share.Replicas > 0 }
	if isReplica(a) && d.Use.OnePerClaim && (a.Share.Replicas > 1 || slices.ContainsFunc(p.Assignments, isReplica)) {
		return refuse(ErrRefused, "is limited by the administrator to one replica for a claim")
	}
	return nil
}

func timeSlices(t api.TimeSlicing) gpu.Settings {
	if t.Interval == api.DefaultInterval {
		return gpu.Settings{}
	}
	return gpu.Settings{Interval: gpu.Interval(t.Interval)}
}
