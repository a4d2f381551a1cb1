/** Queries and titles to begin with, and those that a person pastes or drops. */

/** @typedef {{name: string, query: string, titles: string[]}} Example */

export const MAX_TITLES = 200;

/** @type {Example[]} */
export const EXAMPLES = [
  {
    name: "Wireless mouse",
    query: "wireless mouse",
    titles: [
      "Logitech M185 Wireless Mouse, 2.4 GHz with USB Receiver, Black",
      "Mouse pad, 300 × 250 mm, non-slip rubber base",
      "Wired optical mouse with 1.8 m USB cable",
      "Rechargeable Bluetooth mouse for laptop and tablet, silent click",
      "Wireless keyboard and mouse set, full size",
      "Cotton dish towel, set of 4",
      "Wireless phone charger, 15 W fast charging stand",
      "Replacement USB receiver for wireless mouse",
      "Gaming mouse with RGB light, 6 buttons, wired",
      "Toy mouse for cats, 12 pack",
    ],
  },
  {
    name: "Angle bracket",
    query: "angle bracket",
    titles: [
      "Simpson Strong-Tie 12-Gauge Angle",
      "Steel corner brace, 2 inch, zinc plated, 4 pack",
      "Shelf bracket, black iron, 8 × 10 inch",
      "Angle grinder, 4-1/2 inch, 7 amp",
      "Wood deck screws, 2-1/2 inch, 1 lb box",
      "Right angle bracket for 2020 aluminium profile",
      "TV wall bracket, tilting, 32 to 65 inch",
      "Bracket fungus field guide, paperback",
    ],
  },
  {
    name: "Spinach dip",
    query: "spinach and herb dip mix",
    titles: [
      "Spinach & Herb Dip Mix, 2 packets",
      "Perfectly Potato Cheddar Soup, 7.1 ounce",
      "Spinach seasoning",
      "Vegetable dip mix, 12 pouches",
      "Frozen chopped spinach, 10 oz",
      "Herb garden starter kit with basil, parsley and chives",
      "French onion dip mix, gluten free",
      "Dipping bowls, white ceramic, set of 6",
    ],
  },
  {
    name: "A long question",
    query: "where can i find a quiet wireless mouse that works with my laptop?",
    titles: [
      "Rechargeable Bluetooth mouse for laptop and tablet, silent click",
      "Logitech M185 Wireless Mouse, 2.4 GHz with USB Receiver, Black",
      "Wired optical mouse with 1.8 m USB cable",
      "Laptop sleeve, 14 inch, grey felt",
      "Mouse pad, 300 × 250 mm, non-slip rubber base",
      "Quiet desk fan, USB powered",
      "Toy mouse for cats, 12 pack",
    ],
  },
  {
    name: "무선 마우스 (Korean)",
    query: "무선 마우스",
    titles: [
      "로지텍 M185 무선 마우스 블랙 USB 나노 수신기 포함",
      "저소음 블루투스 무선 마우스 충전식 노트북 태블릿 겸용",
      "유선 광 마우스 1.8m USB 케이블",
      "무선 키보드 마우스 세트",
      "마우스 패드 300×250 미끄럼 방지",
      "고양이 장난감 쥐 12개입",
      "면 행주 4장 세트",
    ],
  },
  {
    name: "강남역 오리고기 (a Korean question)",
    query: "강남역에서 가장 회식 하기 좋은 오리고기 맛있는 집은 어디야?",
    titles: [
      "강남역 오리고기 전문점 단체 회식 룸 완비",
      "서초동 삼겹살 회식 식당 단체석",
      "홍대입구 오리구이 맛집",
      "강남역 브런치 카페 데이트 코스",
      "강남역 지하상가 휴대폰 케이스",
      "부산 해운대 횟집",
      "오리털 이불 킹사이즈",
    ],
  },
  {
    name: "无线鼠标 (Chinese)",
    query: "无线鼠标",
    titles: [
      "罗技 M185 无线鼠标 2.4G 带 USB 接收器 黑色",
      "可充电蓝牙鼠标 静音 笔记本 平板通用",
      "有线光电鼠标 1.8 米 USB 线",
      "无线键盘鼠标套装 全尺寸",
      "鼠标垫 300×250 毫米 防滑",
      "猫玩具老鼠 12 只装",
      "纯棉擦碗布 4 条",
    ],
  },
];

/** @param {string} text @returns {string[]} one title per line that is not blank */
export function titlesOf(text) {
  return text.split(/\r\n|\r|\n/).filter((line) => line.trim());
}

/**
 * @param {string} text a csv or tsv file, or one title per line
 * @returns {{query: string | null, titles: string[], note: string}}
 */
export function readFile(text) {
  const rows = records(text.replace(/^\uFEFF/, "")).map((row) => row.map(oneLine)).filter((row) => row.some((field) => field.trim()));
  const header = (rows[0] ?? []).map((field) => field.trim().toLowerCase());
  const at = ["title", "titles", "product_title", "document", "text"].map((name) => header.indexOf(name)).find((i) => i >= 0);
  if (at === undefined) return { query: null, ...limited(titlesOf(text)) };
  const queryAt = header.indexOf("query");
  const body = rows.slice(1);
  if (queryAt < 0) return { query: null, ...limited(body.map((row) => row[at] ?? "")) };
  const query = body[0]?.[queryAt] ?? null;
  const own = body.filter((row) => row[queryAt] === query).map((row) => row[at] ?? "");
  const others = new Set(body.map((row) => row[queryAt])).size - 1;
  const { titles, note } = limited(own);
  const left = others === 1 ? "1 other query of the file is" : `${others} other queries of the file are`;
  return { query, titles, note: others > 0 ? `${note} ${left} left out.` : note };
}

/** @param {string} field of a file @returns {string} in one line, as the page has one title per line */
function oneLine(field) {
  return field.replace(/\s*[\r\n]+\s*/g, " ");
}

/**
 * @param {ArrayBuffer} content of a file @returns {string | null} its text, in UTF-8, or in UTF-16 with a byte order mark;
 *   null: it is not text in either
 */
export function decoded(content) {
  const [first, second] = new Uint8Array(content);
  const encoding = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(content);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** @param {string[]} titles @returns {{titles: string[], note: string}} */
export function limited(titles) {
  const filled = titles.filter((title) => title.trim());
  const note =
    filled.length > MAX_TITLES ? `The first ${MAX_TITLES} of ${filled.length} titles.` : `${filled.length} titles.`;
  return { titles: filled.slice(0, MAX_TITLES), note };
}

/** @param {string} text RFC 4180, or with tabs or semicolons between the columns @returns {string[][]} */
function records(text) {
  const separator = text.match(/^(?:"[^"]*"|[^\r\n\t,;"])*([\t,;])/)?.[1] ?? ",";
  const rows = [[""]];
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const row = /** @type {string[]} */ (rows.at(-1));
    const char = text[i];
    if (quoted && char === '"' && text[i + 1] === '"') row[row.length - 1] += text[i++];
    else if (char === '"' && (quoted || row.at(-1) === "")) quoted = !quoted;
    else if (!quoted && char === separator) row.push("");
    else if (!quoted && (char === "\n" || char === "\r")) {
      if (char === "\r" && text[i + 1] === "\n") i++;
      rows.push([""]);
    } else row[row.length - 1] += char;
  }
  return rows;
}
