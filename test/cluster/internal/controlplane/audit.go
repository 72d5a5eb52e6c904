// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

// AuditLog is the name under which the control plane's machine has the audit log.
const AuditLog = "audit"

// auditPolicy is on a disk of the machine's own.
const auditPolicy = "/var/audit-policy.json"

// auditFiles is the policy that logs who asked for what, without bodies, and what the answer was, for some users only.
func auditFiles(o Options) map[string]string {
	if len(o.Audit) == 0 {
		return nil
	}
	policy, err := json.Marshal(map[string]any{
		"apiVersion": "audit.k8s.io/v1",
		"kind":       "Policy",
		"omitStages": []string{"RequestReceived"},
		"rules": []any{
			map[string]any{"level": "Metadata", "users": o.Audit},
			map[string]any{"level": "None"},
		},
	})
	if err != nil {
		panic(err) // strings always marshal
	}
	return map[string]string{auditPolicy: string(policy)}
}

func auditFlags(o Options) []string {
	if len(o.Audit) == 0 {
		return nil
	}
	return []string{
		"--audit-policy-file=" + auditPolicy,
		"--audit-log-path=" + machine.LogPath(machine.Home, AuditLog),
	}
}
