// SPDX-License-Identifier: Apache-2.0

// Package network lets claims have GPUs over the network: it publishes what server pods serve, admits claims at the
// servers, and signs the certificates of sessions.
//
// Controller (network.go) runs on the leader. Start makes two loops, which run after each change and every period. The
// first calls round (round.go): authority makes or reads the Secrets (certificates.go); look reads which pods serve
// what (servers.go); admit sends each server the list of its claims, and notes which it has admitted; devices says what
// is published, and publisher writes the pool; report writes the status of each claim (claims.go). The second calls
// sign, which answers CertificateSigningRequests of plugins on nodes of clients. Add also lets all replicas follow the
// pool in cluster.View.Remote, for quotas.
//
// What must hold:
//   - A round compares everything with what there is, so nothing depends on having seen a change (TestRounds). A server
//     keeps its sessions in memory, and gets the whole list each time.
//   - Neither loop does anything until the claims are known, and a new leader begins with the devices that an earlier
//     one has published (restore).
//   - The binding condition SessionReady of a claim is true only after the server has answered that it admits the
//     claim.
//   - A certificate is only for the plugin's service account, with a token for the node on which a pod uses the claim
//     (TestCertificates).
//   - A device whose server is gone or silent stays published while claims hold it, with a NoExecute taint. If none of
//     several servers can be reached, those whose pods are ready are spared (spare).
//   - A claim with several GPUs over the network, or with admin access, gets no session (refusal).
//
// Tests run rounds against a fake clientset and real TLS servers; TestAllocation asks the scheduler's own allocator.
package network
