// Node with the openai package: npm install openai
// flowzoo train --program "node examples/agents/node_pair.mjs" --options roles=solver,reviewer at_once=1 --steps 2
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const client = new OpenAI();
const ask = async (model, content) =>
  (await client.chat.completions.create({ model, messages: [{ role: "user", content }] }))
    .choices[0].message.content;
const problem = readFileSync(0, "utf8");
console.log(await ask("reviewer", `${problem}\n\n${await ask("solver", problem)}`));
