// SPDX-License-Identifier: Apache-2.0

// Package supervise runs the requested MPS daemons of a node, as child processes. Package mps has the directory in
// which daemons are requested and reported.
//
// Run locks the directory, reads the requests when a file changes, and gives each daemon a worker (worker.go), so that
// none waits for another. worker.runDaemon starts NVIDIA's control program (start, in running.go), waits until the
// daemon answers and its limits are set (process.await), reports it as ready, starts a server before the first client
// connects, and then sets changed limits until the daemon ends (watchProcess). A daemon that fails is started again
// after a pause of up to 5 s. driver.go talks to the control program, and memory.go mounts the memory of a daemon.
//
// What must hold:
//   - One supervisor runs at a time, and its reports count only while it holds the exclusive lock. Reports of a killed
//     one never count (TestTwoSupervisors, TestNoStateOfAKilledSupervisorCounts).
//   - Daemons end with their supervisor, also if it is killed (TestSupervisorsComeAndGo).
//   - A change of limits does not restart a daemon. If it fails, the daemon goes on, because it has clients, and is
//     reported as not ready (TestLimitsOfARunningDaemon, TestRefusedLimits).
//   - Limits count as set only if the daemon's answers say so (FuzzAnswers); its exit code does not tell.
//   - A request that cannot be read changes nothing (TestWhatCannotBeRead). Without inotify, files are read every
//     second.
//   - Clients are not trusted. What they make a daemon print takes no more memory (FuzzOutput), and not each line
//     causes a report (TestReportsOfServerFailures). A daemon with memory of its own follows no link of a client, on
//     Linux 5.10 and newer (TestLinksOfClients).
//   - A report that could not be written is written later (TestStateThatCannotBeWritten).
//
// The tests run the simulated control program; TestNVIDIA runs NVIDIA's own of several driver branches.
package supervise
