// SPDX-License-Identifier: Apache-2.0
// The clusters: nodes, primaries, and storage, as the answering broker sees them.
"use strict";

class Clusters {
  constructor() {
    this.body = h("div", {});
    this.node = h("div", {}, h("div", { className: "bar" }, h("h1", {}, "Clusters")), this.body);
    this.last = "";
    this.asking = false;
    this.update();
  }

  async update() {
    if (this.asking) return;
    this.asking = true;
    try {
      const found = await askJson("api/clusters");
      const text = JSON.stringify(found);
      if (text !== this.last) {
        this.last = text;
        this.show(found);
      }
    } catch (error) {
      this.last = "";
      this.body.replaceChildren(h("p", { className: "card result bad" }, error.message));
    } finally {
      this.asking = false;
    }
  }

  show(found) {
    const parts = [h("p", {}, `${found.broker} answers. Other nodes may see other states.`)];
    if (found.gap && found.gap !== known.gap) parts.push(h("p", { className: "card" }, found.gap)); // the banner has the other
    for (const cluster of found.clusters) parts.push(...this.cluster(cluster));
    if (!found.clusters.length) parts.push(h("p", { className: "card empty" }, "This broker has no cluster."));
    this.body.replaceChildren(...parts);
  }

  cluster({ name, locality, status, storage, error }) {
    const parts = [h("h2", {}, `${name} (${locality})`)];
    if (error) parts.push(h("p", { className: "card result bad" }, error));
    if (!status) return parts;
    const orphans = status.partitions.filter(({ primary }) => !primary).map(({ id }) => id);
    const inactive = status.partitions.filter((part) => part.primary && part.status !== "ACTIVE");
    const starting = status.nodes.filter((node) => node.connected !== false && node.status === "STARTING");
    const away = status.nodes.filter((node) => !starting.includes(node) && (node.connected === false || node.status !== "AVAILABLE"));
    const findings = [];
    const tell = (level, title, text, remedy) => findings.push({ kind: "cluster", level, title, text, remedy });
    if (orphans.length) tell("critical", "No primary", `Partitions ${orphans.join(", ")} have no primary: their queues accept and deliver nothing.`, "Check that a majority of the nodes runs, and read the brokers' logs.");
    if (inactive.length) tell("critical", "Primary not active", `${inactive.map((part) => `Partition ${part.id}: ${part.primary} is ${part.status}`).join("; ")}. The broker does not acknowledge posts to the queues of the partitions.`, "Wait until the nodes have synchronised their storages. After minutes, read the logs of the primary.");
    if (!status.leader && !status.active_node && status.nodes.length > 1) tell("critical", "No leader", "The nodes have elected no leader.", "Check that a majority of the nodes runs and that the nodes reach each other.");
    if (away.length) tell("warning", `${several(away.length, "node")} not available`, `${away.map(({ description, status: state }) => `${description} (${state})`).join(", ")}.`, "Start the node, or repair its network.");
    if (starting.length) tell("warning", `${several(starting.length, "node")} starting`, `${starting.map(({ description }) => description).join(", ")} ${starting.length === 1 ? "synchronises its" : "synchronise their"} storage.`, "Wait. After minutes, read the log of the node.");
    if (!status.healthy && !findings.length) tell("warning", "Not healthy", "The broker considers the cluster unhealthy.", "Read the broker's log.");
    parts.push(headline(findings, null, "The cluster is healthy"));
    const answers = (node) => node.description === status.self_node;
    const role = (node) => [node.description === status.leader ? "leader" : "", answers(node) ? "answers" : "", node.description === status.active_node ? "active" : ""].filter(Boolean).join(", ");
    parts.push(h("section", { className: "card stacked" }, h("h3", {}, "Nodes"), table(["Node", "State", "Role", "Primary of partitions"],
      status.nodes.map((node) => [node.description, node.connected === false ? `${node.status}, not connected` : node.status, role(node) || "–", node.primary_for.join(", ") || "–"]))));
    const files = new Map(storage.map((each) => [each.id, each]));
    const bytes = (file) => (file ? `${size(file.used)} of ${size(file.size)}` : "–");
    parts.push(h("section", { className: "card stacked" }, h("h3", {}, "Partitions"), table(["Partition>", "Primary", "State", "Queues>", "Storage", "Data>", "Journal>"],
      status.partitions.map((part) => {
        const stored = files.get(part.id);
        return [String(part.id), part.primary || "no primary", part.status, count(part.queues), stored ? `${stored.state}${stored.available ? "" : ", accepts no posts"}` : "–",
          bytes(stored && stored.data), bytes(stored && stored.journal)];
      }))));
    return parts;
  }
}
