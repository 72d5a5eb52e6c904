// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

// AuditLog is the name of the audit log on the control plane's machine.
const AuditLog = "audit"

// auditPolicy is on the machine's own disk.
const auditPolicy = "/var/audit-policy.json"

// auditFiles returns the audit policy: it logs requests of some users and the response codes, without bodies.
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
