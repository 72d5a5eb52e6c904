// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func tryLinks() error {
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"}
	if err := netlink.LinkAdd(cable); err != nil {
		return fmt.Errorf("the kernel lacks virtual links (veth): %w", err)
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe2"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("the kernel lacks bridges: %w", err)
	}
	return nil
}

// tryNFTables requests the ruleset generation, the cheapest nf_tables request.
func tryNFTables() error {
	const nftSubsystem, getGeneration = 10, 16 // NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN
	request := nl.NewNetlinkRequest(nftSubsystem<<8|getGeneration, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	if _, err := request.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("the kernel lacks nf_tables: %w", err)
	}
	return nil
}
