// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig parses the node configuration, which says how claims may use GPUs and what follows from their
// errors: in the driver's own format, or in that of NVIDIA's device plugin, which has nothing about errors.
//
// Parse returns a Config. It reads YAML into nodes (reader.go). By the fields of the root, reader.config chooses the
// format: NodeConfig in own.go, with the health rules in health.go, or the device plugin's in deviceplugin.go. Both
// become a list of entries: a selector (selector.go), a gpu.SharingMode and a health.Policy. Config.For and
// Config.Health return those of the first entry that selects the GPU, otherwise the defaults. Config.Unmatched lists
// what has no effect on the GPUs of a node.
//
// What must hold:
//   - A file with a mistake is refused as a whole. The reader continues after a mistake, so that the error reports all,
//     each with its line, its field and what is accepted (TestInvalidConfigurations, TestInvalidHealth).
//   - Unknown fields are refused, except in flags of the device plugin. Its settings of sharing are honoured or
//     refused. Other settings that change what containers get are refused, or have a warning in Config.Warnings
//     (TestDevicePluginFormat).
//   - An entry that can never decide, because an earlier one selects the same GPUs, is refused (reachable). That is
//     checked once nothing else is wrong.
//   - Selections without effect on one node are no error: nodes with other GPUs may share the file
//     (TestSelectionsWithoutEffect).
//   - Replicas are within what the isolation supports (maxReplicas).
//   - The zero Config leaves all GPUs at their defaults (TestNoConfiguration).
//   - The same text means the same (FuzzParse).
//
// The tests are tables of texts with their results or errors; FuzzParse reads files of any content.
package nodeconfig
