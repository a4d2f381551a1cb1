"""What made-up questions are made of: frames around what is asked for, places, foods and occasions.

Written for headroom by a language model from general knowledge; no native speaker has checked the Korean and
Chinese ones. Neither the place nor the food of the example that the tests ask is among them.
"""

ENGLISH = (
    "where can i find {a} that is {t}?",
    "where can i buy {a} with {t}?",
    "what is the best {n} with {t}",
    "which {n} is {t}?",
    "i am looking for {a} that has to be {t}",
    "i'm looking for a good {t} {n}, do you have any?",
    "can you recommend {a}, {t} if possible?",
    "do you sell {t} {n}?",
    "please show me some {t} {n} that i can order online",
    "my old {n} broke and i need a new one, {t} please",
    "what would be a nice {t} {n} for my father?",
    "how much does {a} with {t} cost?",
    "hello, i need to get {a} and it should be {t}",
    "is there any {n} around that is really {t}",
    "could you help me choose {a}? i would like {t}",
)
"""{n}: a thing; {a}: the same with its article; {t}: a trait. The query is the trait and the thing."""

ENGLISH_BARE = (
    "where can i find {a}?",
    "what kind of {n} should i buy",
    "can you recommend {a} to me please?",
    "i want to buy {a}, which one is good?",
    "do you know where they sell {n}?",
    "i have been looking for {a} everywhere",
)
"""Without a trait: the query is the thing."""

KOREAN = (
    "{t} {n} 어디서 살 수 있어?",
    "{t} {n} 추천해 주세요",
    "요즘 제일 잘 나가는 {n} 중에 {t} 거 있어?",
    "{t} {n} 찾고 있는데 괜찮은 거 있을까요?",
    "혹시 {t} {n} 파는 데 아세요?",
    "집에서 쓸 {n} 하나 사려고 하는데 {t} 걸로 보여줘",
    "{n} 새로 사야 하는데 {t} 게 뭐가 있지?",
    "{t} {n} 가격이 얼마나 하는지 알려줘",
)
KOREAN_BARE = (
    "{n} 어디서 사는 게 좋을까?",
    "괜찮은 {n} 하나만 추천해줘",
    "{n} 사고 싶은데 뭐가 좋아?",
    "{n} 파는 곳 좀 알려줄래?",
)
KOREAN_PLACES = tuple(
    "홍대 신촌 부산역 해운대 제주공항 판교 잠실 명동 이태원 성수동 여의도 수원역 대전 전주 경주 "
    "광화문 을지로 건대입구 사당역 강릉 서울역 합정역 신림동 연남동 종로 압구정 대구 광안리 속초 "
    "여수 춘천 분당 일산 인천 청주 노량진 구로 마포 용산 가로수길 교대 삼성 선릉 역삼 신사 논현 "
    "청담 왕십리 성신여대 혜화 충무로 동대문 신림 목동 당산 영등포 천호 강동 송파 문정 수서 동탄 "
    "부천 안양 평촌 의정부 김포 울산 포항 창원 목포 순천 통영 거제 제주 서귀포 천안 세종 원주".split()
)
KOREAN_PLACE_ENDINGS = ("", "", "역", "역", "동", " 시장", " 터미널")
"""What may follow a place that has none of these endings."""

KOREAN_FOODS = tuple(
    "냉면 삼겹살 초밥 칼국수 파스타 순대국 치킨 떡볶이 곱창 갈비 쌀국수 마라탕 모듬회 족발 해물탕 "
    "김밥 스테이크 돈까스 닭갈비 국밥 짜장면 샤브샤브 한우 장어 만두 비빔밥 감자탕 피자 브런치 "
    "조개구이 양꼬치 카레 보쌈 라멘 소고기 돼지고기 닭고기 양고기 생선구이 막국수 추어탕 해장국 "
    "아귀찜 낙지볶음 보리밥 간장게장 대게 딤섬 우동 타코 햄버거 케이크 빙수 설렁탕 육회 순두부 "
    "부대찌개 참치회 전복죽 꼬막 매운탕 닭발 막창 수제비 쭈꾸미 월남쌈 훠궈 탕수육 한정식 샐러드 "
    "돼지갈비 물회".split()
)
KOREAN_OCCASIONS = tuple(
    "회식 데이트 모임 혼밥 상견례 가족외식 돌잔치 생일파티 접대 소개팅 점심식사 술자리".split()
)
KOREAN_VENUES = (
    ("{p}에서 {b}{o}{h} 좋은 {f} {g}{e}", "{p} {f} {o} 맛집"),
    ("{p}에서 {o}{h} 괜찮은 {f} {b}{g}{e}", "{p} {f} {o} 맛집"),
    ("{o}{h} 좋은 {p} {f} {g}{e}", "{p} {f} {o} 맛집"),
    ("{p}에서 {b}{f} {g}{e}", "{p} {f} 맛집"),
    ("{p} 근처 {f} {b}{g}{e}", "{p} {f} 맛집"),
    ("{f} {b}{g}{e} {p} 쪽으로", "{p} {f} 맛집"),
    ("{p}에서 {b}{o}{h} 좋은 {g}{e}", "{p} {o} 맛집"),
    ("이번 주말에 {p}에서 {o} 할 건데 {f} 잘하는 데 추천해 주세요", "{p} {f} {o} 맛집"),
    ("{p}에 있는 {f} 집 중에 {b}유명한 곳은 어디인가요?", "{p} {f} 맛집"),
    ("{o} 장소로 {p} 쪽에 {b}조용한 데 어디 없어?", "{p} {o} 장소"),
    ("{p}에서 {o} 하려면 어디가 좋아?", "{p} {o} 장소"),
    ("{p}에서 {b}{o}{h} 좋은 장소 추천해줘", "{p} {o} 장소"),
    ("{p} 주변에 주차되는 {f} 식당이 어디지?", "{p} {f} 맛집 주차"),
    ("친구들이랑 {p}에서 {f} 먹으려고 하는데 어디로 가면 좋을까", "{p} {f} 맛집"),
)
KOREAN_BEST = ("", "가장 ", "제일 ", "정말 ", "진짜 ")
KOREAN_TO_DO = (" 하기", "하기", "에")
KOREAN_GOOD = (
    *("맛있는 집", "맛있는 곳", "맛있는 식당", "맛있게 하는 집", "잘하는 집", "유명한 집"),
    *("괜찮은 식당", "맛있기로 소문난 집"),
)
KOREAN_ENDINGS = (
    *("은 어디야?", "은 어디예요?", "은 어디인가요?", " 어디야?", " 어디 있어?", "이 어디지?", "을 알려줘"),
    *(" 좀 알려 주세요", " 추천해줘", "을 추천해 주세요", " 있을까요?", "이 있나요", " 찾아줘"),
)
"""Questions about places to eat, and their queries.

{p}: a place; {f}: a food; {o}: an occasion; {b}: KOREAN_BEST; {h}: KOREAN_TO_DO; {g}: KOREAN_GOOD, which a
search engine's users call 맛집; {e}: KOREAN_ENDINGS."""

CHINESE = (
    "哪里可以买到{t}的{n}？",
    "请问有没有{t}的{n}推荐？",
    "我想买一个{t}的{n}，哪种比较好？",
    "{t}的{n}一般多少钱？",
    "有什么{t}又便宜的{n}吗",
    "家里的{n}坏了，想换一个{t}的，怎么选？",
    "能不能帮我找一下{t}的{n}",
    "你们店里卖不卖{t}的{n}？",
)
CHINESE_BARE = (
    "{n}在哪里买比较好？",
    "请推荐一款好用的{n}",
    "我想知道哪个牌子的{n}好",
    "想给妈妈买{n}，有什么推荐吗？",
)
FRAMES = {
    "en": (ENGLISH, ENGLISH_BARE),
    "ko": (KOREAN, KOREAN_BARE),
    "zh": (CHINESE, CHINESE_BARE),
}
"""Frames with a trait and without one, by language."""

FUNCTION_WORDS = frozenset(
    "a an the is are was were be been do does did has have had can could will would shall should may "
    "might must what who whom whose which where when why how to of in on at for from by with about as "
    "it its he his she her they their them there that this these those i you we my your our me us and "
    "or but if so than then kind type name called long much many people some any s all".split()
)
"""English words that the rule-made query of a question leaves out."""
